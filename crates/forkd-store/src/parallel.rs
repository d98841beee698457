//! Many small jobs on all cores. The threads end before the function returns: a process that is about to fork must not have a pool
//! of them.

use std::panic;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Runs `job` for every number below `count` and returns the results in order. Each thread has a `scratch` of its own. After the first
/// error no new job is begun.
pub(crate) fn for_each<S, T: Send, E: Send>(
    count: usize,
    scratch: impl Fn() -> S + Sync,
    job: impl Fn(&mut S, usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<Vec<(usize, T)>, E> {
        let mut scratch = scratch();
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count || failed.load(Ordering::Relaxed) {
                return Ok(done);
            }
            let result = job(&mut scratch, index).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            done.push((index, result));
        }
    };
    let mut done = Vec::with_capacity(count);
    thread::scope(|scope| {
        let helpers: Vec<_> = (1..cores().min(count))
            // Where no more threads are allowed, fewer do the work.
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let own = work();
        let others = helpers
            .into_iter()
            .map(|helper| helper.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        for result in std::iter::once(own).chain(others.collect::<Vec<_>>()) {
            done.extend(result?);
        }
        Ok(())
    })?;
    done.sort_unstable_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// How many threads can run at once. The standard library would also look into the cgroup's files, and a process in a jail
/// must not open any.
fn cores() -> usize {
    let cores = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
    usize::try_from(cores).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order() {
        let squares = for_each(100, || (), |(), index| Ok::<_, ()>(index * index)).unwrap();
        assert!(squares.into_iter().eq((0..100).map(|index| index * index)));
        assert_eq!(for_each(0, || (), |(), _| Err::<(), _>("never run")), Ok(Vec::new()));
    }

    #[test]
    fn an_error_ends_the_work() {
        let begun = AtomicUsize::new(0);
        let job = |_: &mut (), index: usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            if index == 3 { Err(index) } else { Ok(()) }
        };
        assert_eq!(for_each(1 << 20, || (), job), Err(3));
        assert!(begun.load(Ordering::Relaxed) < 1 << 20);
    }
}
