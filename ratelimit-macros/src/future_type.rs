//! The type of a returned future.

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::{GenericArgument, Path, PathArguments, Type, TypeParamBound};

/// The output type of a future in a signature.
pub(crate) enum FutureOutput<'a> {
    Named(&'a Type),
    /// `impl Future` without an output: the token `Future`.
    Unnamed(&'a Ident),
}

impl ToTokens for FutureOutput<'_> {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            FutureOutput::Named(ty) => ty.to_tokens(tokens),
            FutureOutput::Unnamed(future) => future.to_tokens(tokens),
        }
    }
}

/// `T` of `impl Future<Output = T>`, `Pin<Box<dyn Future<Output = T>>>` or `BoxFuture<T>`.
pub(crate) fn output_of_future(ty: &Type) -> Option<FutureOutput<'_>> {
    let bounds = match ty {
        Type::Group(group) => return output_of_future(&group.elem),
        Type::Paren(paren) => return output_of_future(&paren.elem),
        Type::ImplTrait(ty) => &ty.bounds,
        Type::TraitObject(ty) => &ty.bounds,
        Type::Path(path) => {
            if let Some(ty) = boxed_type(&path.path) {
                return output_of_future(ty);
            }
            let last = path.path.segments.last()?;
            let is_future = last.ident == "BoxFuture" || last.ident == "LocalBoxFuture";
            return types_in(&path.path).next_back().filter(|_| is_future).map(FutureOutput::Named);
        }
        _ => return None,
    };
    bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => {
            let last = bound.path.segments.last()?;
            match &last.arguments {
                _ if last.ident != "Future" => None,
                PathArguments::AngleBracketed(arguments) => arguments.args.iter().find_map(|argument| match argument {
                    GenericArgument::AssocType(output) => Some(FutureOutput::Named(&output.ty)),
                    _ => None,
                }),
                _ => Some(FutureOutput::Unnamed(&last.ident)),
            }
        }
        _ => None,
    })
}

/// True if the name of a type, or of the trait that it implements, ends in one of these words. In `Pin<Box<..>>` and
/// the like, that of the value inside.
pub(crate) fn names_type(ty: &Type, words: &[&str]) -> bool {
    const HOLDERS: [&str; 6] = ["Box", "Option", "Pin", "Response", "Result", "Sse"];
    let is_named = |path: &Path| {
        let name = path.segments.last().map(|last| last.ident.to_string());
        name.is_some_and(|name| words.iter().any(|word| name.ends_with(word)))
    };
    let bounds = match ty {
        Type::Group(group) => return names_type(&group.elem, words),
        Type::Paren(paren) => return names_type(&paren.elem, words),
        Type::ImplTrait(ty) => &ty.bounds,
        Type::TraitObject(ty) => &ty.bounds,
        Type::Path(path) => {
            let last = path.path.segments.last();
            let is_holder = last.is_some_and(|last| HOLDERS.iter().any(|holder| last.ident == holder));
            return is_named(&path.path) || is_holder && types_in(&path.path).any(|ty| names_type(ty, words));
        }
        _ => return false,
    };
    bounds.iter().any(|bound| matches!(bound, TypeParamBound::Trait(bound) if is_named(&bound.path)))
}

/// `T` of `Pin<T>` and `Box<T>`.
fn boxed_type(path: &Path) -> Option<&Type> {
    let last = path.segments.last()?;
    types_in(path).next_back().filter(|_| last.ident == "Pin" || last.ident == "Box")
}

/// The types in `Result<A, B>`.
fn types_in(path: &Path) -> impl DoubleEndedIterator<Item = &Type> {
    let arguments = path.segments.last().and_then(|last| match &last.arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    });
    arguments.into_iter().flatten().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}
