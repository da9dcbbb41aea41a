//! Functions as data: how each is called, and how it is written.

use super::{Piece, Result, Type, Writer, call::Call, scope::Scope};

/// A function of a dialect.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Arguments at least and at most.
    pub(crate) takes: (usize, usize),
    pub(crate) class: Class,
    pub(crate) gives: Gives,
    pub(crate) write: Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Scalar,
    /// Over groups or windows, of all rows or those that meet a condition.
    Aggregate,
    /// Over windows only.
    Window,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Gives {
    Is(Type),
    /// The same as an argument.
    As(usize),
}

#[derive(Clone, Copy)]
pub(crate) enum Write {
    /// `{0}` is the first argument as it is, `{0:t}` as text, `{0:i}` as a whole number, `{0:f}` as one with a fraction, `{0:n}` as
    /// any number, `{0:b}` as a condition, `{0:m}` as a moment, `{0:l}` a literal text, `{0:u}` a unit of time; `{*}` are all;
    /// `{p}` is the parameter, `{f}` the rows of an aggregate, `{d}` whether it takes each value once.
    As(&'static str),
    By(for<'a> fn(&mut Writer<'a>, &Call<'a>, &mut Scope<'a>) -> Result<Piece>),
}

/// A scalar function.
pub(crate) const fn scalar(
    name: &'static str,
    takes: (usize, usize),
    is: Type,
    write: &'static str,
) -> Function {
    Function {
        name,
        takes,
        class: Class::Scalar,
        gives: Gives::Is(is),
        write: Write::As(write),
    }
}

/// One that gives what an argument is.
pub(crate) const fn alike(
    name: &'static str,
    takes: (usize, usize),
    argument: usize,
    write: &'static str,
) -> Function {
    Function {
        name,
        takes,
        class: Class::Scalar,
        gives: Gives::As(argument),
        write: Write::As(write),
    }
}

/// An aggregate.
pub(crate) const fn aggregate(
    name: &'static str,
    takes: (usize, usize),
    gives: Gives,
    write: &'static str,
) -> Function {
    Function {
        name,
        takes,
        class: Class::Aggregate,
        gives,
        write: Write::As(write),
    }
}

/// A function over a window.
pub(crate) const fn window(
    name: &'static str,
    takes: (usize, usize),
    gives: Gives,
    write: &'static str,
) -> Function {
    Function {
        name,
        takes,
        class: Class::Window,
        gives,
        write: Write::As(write),
    }
}

/// One that is written by code.
pub(crate) const fn special(
    name: &'static str,
    takes: (usize, usize),
    class: Class,
    by: for<'a> fn(&mut Writer<'a>, &Call<'a>, &mut Scope<'a>) -> Result<Piece>,
) -> Function {
    Function {
        name,
        takes,
        class,
        gives: Gives::Is(Type::Unknown),
        write: Write::By(by),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bigquery, clickhouse};

    #[test]
    fn a_name_is_one_function_and_a_template_names_arguments_it_has() {
        for table in [bigquery::FUNCTIONS, clickhouse::FUNCTIONS] {
            let mut names: Vec<_> = table
                .iter()
                .map(|it| it.name.to_ascii_lowercase())
                .collect();
            names.sort();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
            for Function {
                name,
                takes: (least, most),
                class,
                write,
                ..
            } in table
            {
                let Write::As(template) = write else { continue };
                assert!(least <= most);
                assert_eq!(*class != Class::Scalar, template.contains("{f}"), "{name}");
                for place in template.split('{').skip(1) {
                    let place = place.split(['}', ':']).next().unwrap();
                    assert!(
                        place
                            .parse::<usize>()
                            .map_or("fdop*".contains(place), |at| at < *least),
                        "{name}: {place}"
                    );
                }
            }
        }
    }
}
