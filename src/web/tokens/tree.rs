//! Tokens as a tree: each is followed by the tokens that were created of it.

use std::collections::{BTreeMap, BTreeSet};

use super::TokenEntry;

/// Returns the tokens with the number of their ancestors, each followed by its descendants.
/// Siblings keep their order. A token with a parent outside of the list is a root.
pub(super) fn in_tree_order(tokens: Vec<TokenEntry>) -> Vec<(usize, TokenEntry)> {
    let ids: BTreeSet<i64> = tokens.iter().map(|token| token.id).collect();
    let mut children: BTreeMap<Option<i64>, Vec<TokenEntry>> = BTreeMap::new();
    for token in tokens {
        let parent = token.parent_id.filter(|id| ids.contains(id));
        children.entry(parent).or_default().push(token);
    }
    let mut ordered = Vec::with_capacity(ids.len());
    let mut pending = below(&mut children, None, 0);
    while let Some((depth, token)) = pending.pop() {
        pending.extend(below(&mut children, Some(token.id), depth + 1));
        ordered.push((depth, token));
    }
    ordered
}

/// Removes the children of a token and returns them, the first one last.
fn below(
    children: &mut BTreeMap<Option<i64>, Vec<TokenEntry>>,
    parent: Option<i64>,
    depth: usize,
) -> Vec<(usize, TokenEntry)> {
    let tokens = children.remove(&parent).unwrap_or_default();
    tokens
        .into_iter()
        .rev()
        .map(|token| (depth, token))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn order(tokens: &[(i64, Option<i64>)]) -> Vec<(usize, i64)> {
        let token = |(id, parent): &(i64, Option<i64>)| {
            let text = json!({
                "id": id,
                "name": "ci",
                "alias": "sbp_fc00…0000",
                "created_at": "2026-11-21T09:15:03Z",
                "parent_id": parent,
            });
            serde_json::from_value(text).unwrap()
        };
        let ordered = in_tree_order(tokens.iter().map(token).collect());
        ordered
            .into_iter()
            .map(|(depth, token)| (depth, token.id))
            .collect()
    }

    #[test]
    fn descendants_follow_their_token() {
        let tokens = [
            (5, Some(1)),
            (4, None),
            (3, Some(2)),
            (2, Some(1)),
            (1, None),
        ];
        let expected = [(0, 4), (0, 1), (1, 5), (1, 2), (2, 3)];
        assert_eq!(order(&tokens), expected);
    }

    #[test]
    fn token_without_its_parent_in_the_list_is_a_root() {
        let tokens = [(8, Some(7)), (9, Some(8)), (10, Some(7))];
        assert_eq!(order(&tokens), [(0, 8), (1, 9), (0, 10)]);
        assert!(order(&[]).is_empty());
    }
}
