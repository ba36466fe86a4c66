#[inline]
async fn f() -> R {
    body
}
::core::compile_error! {
    "unknown argument `prefx`, did you mean `prefix`?"
}
::core::compile_error! {
    "unknown unit `Minuts`, did you mean `Minutes`?"
}
::core::compile_error! {
    "`count` must be at least 1, for example count = 1"
}
::core::compile_error! {
    "missing `count`, how many calls are let through: count = 100"
}
