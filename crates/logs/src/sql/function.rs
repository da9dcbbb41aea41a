//! Function tables as data: the arity, return type and translation of each function.

use super::{Piece, Result, Type, Writer, call::Call, scope::Scope};

/// A function of a dialect.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Minimum and maximum number of arguments.
    pub(crate) takes: (usize, usize),
    pub(crate) class: Class,
    pub(crate) gives: Gives,
    pub(crate) write: Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Scalar,
    /// An aggregate function, optionally with a filter or over a window.
    Aggregate,
    /// A function that requires `OVER`.
    Window,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Gives {
    Is(Type),
    /// The type of the argument with this index.
    As(usize),
}

#[derive(Clone, Copy)]
pub(crate) enum Write {
    /// SQL with placeholders. `{0}` is the first argument unchanged, `{0:t}` as text, `{0:i}` as an
    /// integer, `{0:f}` as a float, `{0:n}` as any number, `{0:b}` as a condition, `{0:m}` as a
    /// timestamp, `{0:l}` as a literal and `{0:u}` as a time unit; `{*}` stands for all arguments.
    /// `{p}` is the parameter, `{f}` the filter and window, `{d}` the `DISTINCT` keyword and `{o}`
    /// the `ORDER BY` clause of an aggregate.
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

/// A scalar function that returns the type of an argument.
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

/// An aggregate function.
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

/// A window function.
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

/// A function that is translated by code.
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
