//! Names, and who has them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handles by name. A name can be reserved before there is anything to have it.
pub struct Registry<K, V> {
    entries: Arc<Mutex<BTreeMap<K, RegistryEntry<V>>>>,
}

enum RegistryEntry<V> {
    Reserved,
    There(V),
}

/// A reserved name. It is free again with this value, unless it was filled.
pub struct Reservation<K: Ord + Clone, V> {
    name: K,
    entries: Arc<Mutex<BTreeMap<K, RegistryEntry<V>>>>,
}

impl<K, V> Default for Registry<K, V> {
    fn default() -> Self {
        Registry { entries: Arc::default() }
    }
}

impl<K, V> fmt::Debug for Registry<K, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Registry").finish_non_exhaustive()
    }
}

fn lock<K, V>(
    entries: &Mutex<BTreeMap<K, RegistryEntry<V>>>,
) -> MutexGuard<'_, BTreeMap<K, RegistryEntry<V>>> {
    // A panic while holding the lock leaves the map in order.
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Ord + Clone, V: Clone> Registry<K, V> {
    pub fn get(&self, name: &K) -> Option<V> {
        match lock(&self.entries).get(name)? {
            RegistryEntry::There(value) => Some(value.clone()),
            RegistryEntry::Reserved => None,
        }
    }

    pub fn all(&self) -> Vec<V> {
        let there = |entry: &RegistryEntry<V>| match entry {
            RegistryEntry::There(value) => Some(value.clone()),
            RegistryEntry::Reserved => None,
        };
        lock(&self.entries).values().filter_map(there).collect()
    }

    /// Whether a name is taken, also by what is still being made.
    pub fn has(&self, name: &K) -> bool {
        lock(&self.entries).contains_key(name)
    }

    /// Names that are taken, also by what is still being made.
    pub fn len(&self) -> usize {
        lock(&self.entries).len()
    }

    /// Takes a name. `None` if it is taken.
    pub fn reserve(&self, name: &K) -> Option<Reservation<K, V>> {
        let mut entries = lock(&self.entries);
        if entries.contains_key(name) {
            return None;
        }
        entries.insert(name.clone(), RegistryEntry::Reserved);
        Some(Reservation { name: name.clone(), entries: Arc::clone(&self.entries) })
    }

    /// Takes all of these names, unless there were more than `most` then. Else, how many there are. No two are the same, and
    /// none of them is taken.
    pub fn reserve_all(&self, names: Vec<K>, most: u64) -> Result<Vec<Reservation<K, V>>, u64> {
        let mut entries = lock(&self.entries);
        let present = entries.len() as u64;
        if present.saturating_add(names.len() as u64) > most {
            return Err(present);
        }
        let reserve = |name: K| {
            entries.insert(name.clone(), RegistryEntry::Reserved);
            Reservation { name, entries: Arc::clone(&self.entries) }
        };
        Ok(names.into_iter().map(reserve).collect())
    }

    pub fn remove(&self, name: &K) {
        lock(&self.entries).remove(name);
    }
}

impl<K: Ord + Clone, V> Reservation<K, V> {
    pub fn get(&self) -> &K {
        &self.name
    }

    pub fn fill(self, value: V) {
        lock(&self.entries).insert(self.name.clone(), RegistryEntry::There(value));
    }
}

impl<K: Ord + Clone + fmt::Debug, V> fmt::Debug for Reservation<K, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Reservation").field(&self.name).finish()
    }
}

impl<K: Ord + Clone, V> Drop for Reservation<K, V> {
    fn drop(&mut self) {
        let mut entries = lock(&self.entries);
        if matches!(entries.get(&self.name), Some(RegistryEntry::Reserved)) {
            entries.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_s_until_it_is_given_back() {
        let registry: Registry<String, u32> = Registry::default();
        let name = "a".to_owned();
        let reserved = registry.reserve(&name).unwrap();
        assert!(registry.reserve(&name).is_none());
        assert_eq!((registry.get(&name), registry.all().len(), registry.len()), (None, 0, 1));
        assert!(registry.has(&name) && !registry.has(&"b".to_owned()));
        drop(reserved);
        assert_eq!(registry.len(), 0);
        registry.reserve(&name).unwrap().fill(7);
        assert!(registry.reserve(&name).is_none());
        assert_eq!((registry.get(&name), registry.all()), (Some(7), vec![7]));
        registry.remove(&name);
        assert!(registry.reserve(&name).is_some());
    }

    #[test]
    fn names_are_taken_together_as_far_as_there_is_room() {
        let registry: Registry<u32, ()> = Registry::default();
        let first = registry.reserve_all(vec![1, 2, 3], 5).unwrap();
        assert_eq!(first.iter().map(Reservation::get).collect::<Vec<_>>(), [&1, &2, &3]);
        assert_eq!(registry.reserve_all(vec![4, 5, 6], 5).err(), Some(3));
        assert!(!registry.has(&4) && registry.has(&3));
        drop(first);
        assert_eq!(registry.reserve_all(vec![4, 5, 6], 5).unwrap().len(), 3);
        assert_eq!(registry.len(), 0);
    }
}
