//! Pages of lists of API v2 by cursors: `page[size]`, `page[after]` and `page[before]`.

use crate::{api::organizations::v2::PageLinks, platform::error::Error};

/// Resources of a page, if the request names no number, and at most.
pub(super) const PAGE_SIZE_MAX: i64 = 100;

/// Returns the size of a page if the request names none, for `serde`.
pub(super) const fn default_page_size() -> i64 {
    PAGE_SIZE_MAX
}

/// The position where a page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageStart<C> {
    /// The beginning of the list.
    First,
    /// The resource after this one.
    After(C),
    /// The resource before this one. The page ends there.
    Before(C),
}

/// The page of a list that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageRequest<C> {
    size: i64,
    start: PageStart<C>,
}

impl<C> PageRequest<C> {
    /// Checks the parameters of a page. `parse` returns `None` for a text that is no cursor of the
    /// list.
    pub(super) fn new(
        size: i64,
        (after, before): (Option<&str>, Option<&str>),
        parse: impl Fn(&str) -> Option<C>,
    ) -> Result<Self, Error> {
        if !(1..=PAGE_SIZE_MAX).contains(&size) {
            let problem = format!("Invalid input: expected a number from 1 to {PAGE_SIZE_MAX}");
            return Err(Error::invalid("page[size]", problem));
        }
        let cursor =
            |field: &'static str, text: &str| parse(text).ok_or(Error::PageCursor { field });
        let start = match (after, before) {
            (None, None) => PageStart::First,
            (Some(after), None) => PageStart::After(cursor("page[after]", after)?),
            (None, Some(before)) => PageStart::Before(cursor("page[before]", before)?),
            (Some(_), Some(_)) => {
                let problem = "is not possible together with page[after]";
                return Err(Error::invalid("page[before]", problem));
            }
        };
        Ok(Self { size, start })
    }

    /// Maximum number of rows to read: one more than the page, to detect another page.
    pub(super) const fn rows_max(&self) -> i64 {
        self.size + 1
    }

    /// Returns whether rows are read from the cursor towards the beginning of the list.
    pub(super) const fn is_backward(&self) -> bool {
        matches!(self.start, PageStart::Before(_))
    }

    /// Returns the cursor. The resource that it identifies is not in the page.
    pub(super) const fn cursor(&self) -> Option<&C> {
        match &self.start {
            PageStart::First => None,
            PageStart::After(cursor) | PageStart::Before(cursor) => Some(cursor),
        }
    }

    /// Returns the page of these rows: up to [`Self::rows_max`], in the order in which they were
    /// read.
    pub(super) fn page<T>(&self, mut rows: Vec<T>) -> CursorPage<T> {
        let size = usize::try_from(self.size).unwrap_or_default();
        let has_more = rows.len() > size;
        rows.truncate(size);
        let (has_earlier, has_later) = match self.start {
            PageStart::First => (false, has_more),
            PageStart::After(_) => (true, has_more),
            PageStart::Before(_) => (has_more, true),
        };
        if self.is_backward() {
            rows.reverse();
        }
        CursorPage {
            size: self.size,
            items: rows,
            has_earlier,
            has_later,
        }
    }
}

/// A page of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CursorPage<T> {
    size: i64,
    /// Resources in the order of the list.
    pub(super) items: Vec<T>,
    has_earlier: bool,
    has_later: bool,
}

impl<T> CursorPage<T> {
    /// Returns the links to the pages before and after. `parameters` are the other ones of the
    /// request, `cursor` returns the cursor of a resource.
    pub(super) fn links(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
        cursor: impl Fn(&T) -> Result<String, Error>,
    ) -> Result<PageLinks, Error> {
        let link = |name: &str, item: Option<&T>| {
            let item = item.map(&cursor).transpose()?;
            let link = item.map(|cursor| {
                let mut link = format!("{path}?page[size]={}", self.size);
                for (name, value) in parameters.iter().copied().chain([(name, &*cursor)]) {
                    link.extend(["&", name, "="]);
                    link.extend(form_urlencoded::byte_serialize(value.as_bytes()));
                }
                link
            });
            Ok::<_, Error>(link)
        };
        let (first, last) = (self.items.first(), self.items.last());
        Ok(PageLinks {
            prev: link("page[before]", first.filter(|_| self.has_earlier))?,
            next: link("page[after]", last.filter(|_| self.has_later))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(
        size: i64,
        after: Option<&str>,
        before: Option<&str>,
    ) -> Result<PageRequest<i64>, Error> {
        PageRequest::new(size, (after, before), |text| text.parse().ok())
    }

    /// Reads a page of the numbers 0 to 9 as a list reads its rows.
    fn read(request: &PageRequest<i64>) -> CursorPage<i64> {
        let max = usize::try_from(request.rows_max()).unwrap();
        let cursor = request.cursor().copied();
        let rows: Vec<i64> = if request.is_backward() {
            let rows = (0..10).rev().filter(|n| cursor.is_none_or(|at| *n < at));
            rows.take(max).collect()
        } else {
            let rows = (0..10).filter(|n| cursor.is_none_or(|at| *n > at));
            rows.take(max).collect()
        };
        request.page(rows)
    }

    fn links(page: &CursorPage<i64>) -> PageLinks {
        let cursor = |n: &i64| Ok(n.to_string());
        page.links("/v2/x", &[("search", "a b&c")], cursor).unwrap()
    }

    #[test]
    fn pages_are_continued_in_both_directions() {
        let first = read(&request(4, None, None).unwrap());
        assert_eq!(first.items, [0, 1, 2, 3]);
        let at_first = links(&first);
        assert_eq!(at_first.prev, None);
        assert_eq!(
            at_first.next.as_deref(),
            Some("/v2/x?page[size]=4&search=a+b%26c&page[after]=3")
        );
        let last = read(&request(4, Some("5"), None).unwrap());
        assert_eq!(last.items, [6, 7, 8, 9]);
        assert!(links(&last).next.is_none() && links(&last).prev.is_some());
        let before = read(&request(4, None, Some("6")).unwrap());
        assert_eq!(before.items, [2, 3, 4, 5]);
        assert!(links(&before).next.is_some() && links(&before).prev.is_some());
        let beginning = read(&request(4, None, Some("2")).unwrap());
        assert_eq!(beginning.items, [0, 1]);
        assert!(links(&beginning).prev.is_none());
    }

    #[test]
    fn invalid_pages_are_rejected() {
        for (size, after, before, code, field) in [
            (0, None, None, "validation_failed", "page[size]"),
            (101, None, None, "validation_failed", "page[size]"),
            (1, Some("1"), Some("2"), "validation_failed", "page[before]"),
            (
                1,
                Some("x"),
                None,
                "pagination_cursor_invalid",
                "page[after]",
            ),
            (
                1,
                None,
                Some(""),
                "pagination_cursor_invalid",
                "page[before]",
            ),
        ] {
            let error = request(size, after, before).unwrap_err();
            assert_eq!(error.code().name, code);
            let message = error.message();
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
        }
    }
}
