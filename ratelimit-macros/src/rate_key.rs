//! `#[derive(RateKey)]`: a key of the fields of a struct, or of the variant of an enum.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote_spanned};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::{
    Attribute, Error, Fields, Generics, Ident, Item, ItemEnum, ItemStruct, Meta, Path, Result, Token, Type, parse_quote,
};

use crate::args::runtime_path;
use crate::errors::{Errors, fail};
use crate::tokens::{ends, hygienic};

pub(crate) fn derive(item: TokenStream) -> TokenStream {
    let derived = syn::parse2(item).and_then(|item| match item {
        Item::Struct(item) => of_struct(&runtime_of(&item.attrs)?, item),
        Item::Enum(item) => of_enum(&runtime_of(&item.attrs)?, item),
        Item::Union(item) => {
            let message = "a union cannot be a key, as it does not know which of its fields is set: use an enum";
            fail(item.union_token.span, message)
        }
        other => Err(Error::new_spanned(other, "expected a struct or an enum")),
    });
    derived.unwrap_or_else(Error::into_compile_error)
}

/// The path of the runtime: from `#[rate_key(crate = path)]`, or where it is by default.
fn runtime_of(attributes: &[Attribute]) -> Result<Path> {
    const ONE_ARGUMENT: &str = "`rate_key` has one argument: #[rate_key(crate = ::ratelimit_runtime)]";
    let mut given = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("rate_key")) {
        let path = |input: ParseStream<'_>| {
            let at = input.span();
            if input.parse::<Token![crate]>().and_then(|_| input.parse::<Token![=]>()).is_err() {
                return fail(at, ONE_ARGUMENT);
            }
            let path = runtime_path(input, "crate")?;
            if input.is_empty() { Ok(path) } else { fail(input.span(), ONE_ARGUMENT) }
        };
        let Meta::List(list) = &attribute.meta else { return Err(Error::new_spanned(attribute, ONE_ARGUMENT)) };
        if given.replace(path.parse2(list.tokens.clone())?).is_some() {
            return Err(Error::new_spanned(attribute, "`rate_key` is given twice: remove one"));
        }
    }
    Ok(given.unwrap_or_else(|| parse_quote!(::ratelimit_runtime)))
}

// Output for one field, whose key is the key of the whole:
//     fn write_key(&self, key: &mut KeyWriter<'_>) {
//         RateKey::write_key(&self.0, key)
//     }
//     fn rate_key(&self) -> Key {
//         RateKey::rate_key(&self.0)
//     }
//
// For several fields:
//     fn write_key(&self, key: &mut KeyWriter<'_>) {
//         write_fields(key, &[&&self.tenant, &&self.user])
//     }
fn of_struct(runtime: &Path, ItemStruct { ident, generics, fields, .. }: ItemStruct) -> Result<TokenStream> {
    let mut errors = Errors::default();
    check_fields(&fields, &mut errors);
    if fields.is_empty() {
        let message =
            "a struct without fields has one value, and all calls would share its counter: limit without a key";
        errors.add(ident.span(), message);
    }
    errors.finish()?;
    let members: Vec<_> = fields.members().map(ToTokens::into_token_stream).collect();
    let spans: Vec<_> = fields.iter().map(|field| ends(&field.ty).0).collect();
    if let ([member], [at]) = (&members[..], &spans[..]) {
        let field = quote_spanned!(*at=> &self.#member);
        let call = |method: &str, more: TokenStream| {
            let method = Ident::new(method, *at);
            quote_spanned!(*at=> #runtime::RateKey::#method(#field #more))
        };
        let (write, key) = (call("write_key", hygienic!(, __ratelimit_key)), call("rate_key", hygienic!()));
        let rate_key = hygienic! {
            #[inline]
            fn rate_key(&self) -> #runtime::Key {
                #key
            }
        };
        return Ok(implementation(runtime, &ident, generics, &write, Some(&rate_key)));
    }
    // A second reference, as the last field may be unsized.
    let fields = members.iter().zip(spans).map(|(member, at)| quote_spanned!(at=> &&self.#member));
    let write = write_fields(runtime, fields);
    Ok(implementation(runtime, &ident, generics, &write, None))
}

// Output:
//     match self {
//         Self::Free => RateKey::write_key("Free", key),
//         Self::Paid { 0: field0, 1: field1 } => write_fields(key, &[&"Paid", &field0, &field1]),
//     }
fn of_enum(runtime: &Path, ItemEnum { ident, generics, variants, .. }: ItemEnum) -> Result<TokenStream> {
    let mut errors = Errors::default();
    for variant in &variants {
        check_attributes(&variant.attrs, &mut errors);
        check_fields(&variant.fields, &mut errors);
    }
    if variants.is_empty() {
        errors.add(ident.span(), "an enum without variants has no value that could be a key");
    }
    errors.finish()?;
    let arms = variants.iter().map(|variant| {
        let (ident, name) = (&variant.ident, variant.ident.unraw().to_string());
        if variant.fields.is_empty() {
            return hygienic!(Self::#ident { .. } => #runtime::RateKey::write_key(#name, __ratelimit_key),);
        }
        let bound = |at: usize, span: Span| format_ident!("__ratelimit_field{at}", span = span);
        let members = variant.fields.members().enumerate().map(|(at, member)| {
            let name = bound(at, Span::mixed_site());
            hygienic!(#member: #name)
        });
        let fields = variant.fields.iter().enumerate().map(|(at, field)| {
            let (span, _) = ends(&field.ty);
            let name = bound(at, span);
            quote_spanned!(span=> &#name)
        });
        let write = write_fields(runtime, std::iter::once(hygienic!(&#name)).chain(fields));
        hygienic!(Self::#ident { #(#members),* } => #write,)
    });
    let write = hygienic!(match self { #(#arms)* });
    Ok(implementation(runtime, &ident, generics, &write, None))
}

fn write_fields(runtime: &Path, fields: impl Iterator<Item = TokenStream>) -> TokenStream {
    hygienic!(#runtime::__private::write_fields(__ratelimit_key, &[#(#fields),*]))
}

/// The implementation. Each type parameter must be a key.
fn implementation(
    runtime: &Path,
    ident: &Ident,
    mut generics: Generics,
    write: &TokenStream,
    rate_key: Option<&TokenStream>,
) -> TokenStream {
    let parameters: Vec<_> = generics.type_params().map(|parameter| parameter.ident.clone()).collect();
    if !parameters.is_empty() {
        let bounds = &mut generics.make_where_clause().predicates;
        bounds.extend(
            parameters.iter().map(|parameter| -> syn::WherePredicate { parse_quote!(#parameter: #runtime::RateKey) }),
        );
    }
    let (implemented, types, bounds) = generics.split_for_impl();
    hygienic! {
        #[automatically_derived]
        impl #implemented #runtime::RateKey for #ident #types #bounds {
            fn write_key(&self, __ratelimit_key: &mut #runtime::KeyWriter<'_>) {
                #write
            }

            #rate_key
        }
    }
}

/// Reports `rate_key` on a field or a variant, where it would have no effect.
fn check_attributes(attributes: &[Attribute], errors: &mut Errors) {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("rate_key")) {
        let message = "`rate_key` belongs on the type, and each field is a part of the key: to leave one out, implement `RateKey` by hand";
        errors.push(Error::new_spanned(attribute, message));
    }
}

/// Reports floats, and `rate_key` on fields.
fn check_fields(fields: &Fields, errors: &mut Errors) {
    for field in fields {
        check_attributes(&field.attrs, errors);
        if let Type::Path(path) = &field.ty
            && (path.path.is_ident("f32") || path.path.is_ident("f64"))
        {
            let message = "a float cannot be a part of a key, as it is rarely the same twice: use an integer, such as thousandths";
            errors.push(Error::new_spanned(path, message));
        }
    }
}
