//! Selects the locks of `shuttle`: see `sync.rs` of the runtime.

fn main() {
    println!("cargo::rustc-cfg=model_check");
    println!("cargo::rerun-if-changed=build.rs");
}
