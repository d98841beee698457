//! A user that the host wants a guest to have, whatever its image has.

use serde::{Deserialize, Serialize};

/// Part of the first configuration or of an identity; also `POST /forkd/account`, for a guest that has both already.
///
/// An image that has a user of this name keeps it as it is. The account becomes the default user, and its home the default
/// directory, unless the configuration names others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub name: String,
    /// If another user of the image has this id, the next free one is taken.
    pub uid: u32,
    pub home: String,
}

impl Account {
    /// The user that programs written for E2B expect.
    pub fn e2b() -> Account {
        Account { name: "user".into(), uid: 1000, home: "/home/user".into() }
    }
}

/// `POST /forkd/account`. A guest that was told before, in any way, stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountRequest {
    pub version: u32,
    pub account: Account,
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::agent::VERSION;

    #[test]
    fn messages_of_generation_1_are_understood() {
        let text = include_str!("../../protocol/gen-1/account-request.json");
        let request: AccountRequest = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&request).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(request, AccountRequest { version: VERSION, account: Account::e2b() });
    }
}
