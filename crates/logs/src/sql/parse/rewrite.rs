//! Forms of `ClickHouse` that the parser lacks, rewritten as tokens to forms that it has.

use super::is_keyword;
use crate::engine::sqlparser::{keywords::Keyword, tokenizer::Token};

/// The alias of the subquery that selects the arrays of `ARRAY JOIN`.
pub(in crate::sql) const ARRAY_JOIN: &str = "array join";
/// The alias for `LEFT ARRAY JOIN`, which keeps rows with empty arrays.
pub(in crate::sql) const LEFT_ARRAY_JOIN: &str = "left array join";
/// The column list that marks a common table expression as the name of one value.
pub(in crate::sql) const VALUE: &str = "value of with";

/// Maximum number of `WITH` lists that are rewritten.
const LISTS_MAX: usize = 32;

/// Keywords that end the list of arrays.
const CLAUSES: &[Keyword] = &[
    Keyword::WHERE,
    Keyword::PREWHERE,
    Keyword::GROUP,
    Keyword::HAVING,
    Keyword::ORDER,
    Keyword::LIMIT,
    Keyword::OFFSET,
    Keyword::SETTINGS,
    Keyword::UNION,
    Keyword::QUALIFY,
    Keyword::JOIN,
    Keyword::LEFT,
    Keyword::INNER,
    Keyword::CROSS,
    Keyword::FORMAT,
];

/// Splits the number in `tuple.1`, which the tokenizer reads as `.1`.
pub(super) fn tuple_elements(tokens: Vec<Token>) -> Vec<Token> {
    let mut rewritten: Vec<Token> = Vec::with_capacity(tokens.len());
    for token in tokens {
        let follows_value = match rewritten.last() {
            Some(Token::RParen | Token::RBracket) => true,
            Some(Token::Word(word)) => word.keyword == Keyword::NoKeyword,
            _ => false,
        };
        match &token {
            Token::Number(digits, long) if follows_value && digits.starts_with('.') => {
                rewritten.push(Token::Period);
                rewritten.push(Token::Number(digits[1..].to_owned(), *long));
            }
            _ => rewritten.push(token),
        }
    }
    rewritten
}

/// Rewrites `ARRAY JOIN a AS b` to `CROSS JOIN (SELECT a AS b) AS "array join"`.
pub(super) fn array_joins(tokens: Vec<Token>) -> Vec<Token> {
    let is_array_join = |at: usize, tokens: &[Token]| {
        at + 1 < tokens.len()
            && is_keyword(&tokens[at], Keyword::ARRAY)
            && is_keyword(&tokens[at + 1], Keyword::JOIN)
    };
    if !(0..tokens.len()).any(|at| is_array_join(at, &tokens)) {
        return tokens;
    }
    let mut rewritten: Vec<Token> = Vec::with_capacity(tokens.len());
    // The depths of open array joins with their aliases.
    let mut open: Vec<(usize, &str)> = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        if let Some((start, alias)) = open.last()
            && depth == *start
            && ends_arrays(token, tokens.get(at + 1))
        {
            close(&mut rewritten, alias);
            open.pop();
        }
        if is_array_join(at, &tokens) {
            let alias = match rewritten.last() {
                Some(token) if is_keyword(token, Keyword::LEFT) => {
                    rewritten.pop();
                    LEFT_ARRAY_JOIN
                }
                Some(token) if is_keyword(token, Keyword::INNER) => {
                    rewritten.pop();
                    ARRAY_JOIN
                }
                _ => ARRAY_JOIN,
            };
            rewritten.push(Token::make_keyword("CROSS"));
            rewritten.push(Token::make_keyword("JOIN"));
            rewritten.push(Token::LParen);
            rewritten.push(Token::make_keyword("SELECT"));
            open.push((depth, alias));
            at += 2;
            continue;
        }
        match token {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket => depth = depth.saturating_sub(1),
            _ => {}
        }
        rewritten.push(token.clone());
        at += 1;
    }
    while let Some((_, alias)) = open.pop() {
        close(&mut rewritten, alias);
    }
    rewritten
}

fn ends_arrays(token: &Token, next: Option<&Token>) -> bool {
    match token {
        Token::RParen => true,
        // The function `left`.
        Token::Word(word) if word.keyword == Keyword::LEFT => next != Some(&Token::LParen),
        Token::Word(word) => CLAUSES.contains(&word.keyword),
        _ => false,
    }
}

fn close(tokens: &mut Vec<Token>, alias: &str) {
    tokens.push(Token::RParen);
    tokens.push(Token::make_keyword("AS"));
    tokens.push(Token::make_word(alias, Some('"')));
}

/// Rewrites `WITH value AS name` to `WITH name ("value of with") AS (SELECT value AS name)`.
pub(super) fn with_values(tokens: &[Token]) -> Vec<Token> {
    rewrite_lists(tokens, &mut LISTS_MAX.clone())
}

/// `lists` is the number of lists that are still rewritten. It bounds the recursion and the work.
fn rewrite_lists(tokens: &[Token], lists: &mut usize) -> Vec<Token> {
    let mut rewritten = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at].clone();
        let starts_list = is_keyword(&token, Keyword::WITH)
            && !tokens
                .get(at + 1)
                .is_some_and(|next| is_keyword(next, Keyword::FILL));
        rewritten.push(token);
        at += 1;
        if !starts_list || *lists == 0 {
            continue;
        }
        *lists -= 1;
        while let Some(item) = with_item(tokens, at) {
            match item.name {
                None => rewritten.extend(rewrite_lists(&tokens[at..item.end], lists)),
                Some(name) => {
                    let name = tokens[name].clone();
                    rewritten.push(name.clone());
                    rewritten.push(Token::LParen);
                    rewritten.push(Token::make_word(VALUE, Some('"')));
                    rewritten.push(Token::RParen);
                    rewritten.push(Token::make_keyword("AS"));
                    rewritten.push(Token::LParen);
                    rewritten.push(Token::make_keyword("SELECT"));
                    rewritten.extend(rewrite_lists(&tokens[at..item.end], lists));
                    rewritten.push(Token::RParen);
                }
            }
            at = item.end;
            if tokens.get(at) != Some(&Token::Comma) {
                break;
            }
            rewritten.push(Token::Comma);
            at += 1;
        }
    }
    rewritten
}

/// An item of a `WITH` list.
struct WithItem {
    /// The position of the name of a value, `None` for a common table expression.
    name: Option<usize>,
    /// The position after the item.
    end: usize,
}

/// Finds the end of an item. Returns `None` for text that is no item.
fn with_item(tokens: &[Token], start: usize) -> Option<WithItem> {
    let mut depth = 0_usize;
    for at in start..tokens.len() {
        match &tokens[at] {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket => depth = depth.checked_sub(1)?,
            token if depth == 0 && is_keyword(token, Keyword::AS) => {
                if tokens.get(at + 1) == Some(&Token::LParen) {
                    let end = closing(tokens, at + 1)? + 1;
                    return Some(WithItem { name: None, end });
                }
                return Some(WithItem {
                    name: Some(at + 1).filter(|at| matches!(tokens.get(*at), Some(Token::Word(_)))),
                    end: (at + 2).min(tokens.len()),
                });
            }
            token if depth == 0 && is_keyword(token, Keyword::SELECT) => return None,
            _ => {}
        }
    }
    None
}

/// Returns the position of the parenthesis that closes another.
fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::LParen => depth += 1,
            Token::RParen => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}
