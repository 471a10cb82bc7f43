use std::sync::Barrier;
use std::time::Duration;

use super::*;

#[test]
fn results_come_in_the_order_of_the_items_on_any_number_of_threads() {
    for thread_count in 0..6 {
        let mut results = Vec::new();
        let done = in_order(
            thread_count,
            |push| (0..1000u64).try_for_each(push),
            |item| item * item,
            |result| {
                results.push(result);
                Ok::<(), ()>(())
            },
        );
        assert_eq!(done, Ok(()));
        assert_eq!(results, (0..1000u64).map(|item| item * item).collect::<Vec<_>>(), "{thread_count}");
    }
}

#[test]
fn work_is_done_at_the_same_time() {
    let both = Barrier::new(2);
    let done = in_order(2, |push| (0..2).try_for_each(push), |_| both.wait(), |_| Ok::<(), ()>(()));
    assert_eq!(done, Ok(()));
}

#[test]
fn threads_have_the_cancel_flag_of_the_thread_that_starts_them() {
    let flag = Arc::new(AtomicBool::new(false));
    let is_flag = |()| cancel_flag().is_some_and(|found| Arc::ptr_eq(&found, &flag));
    set_cancel_flag(Some(Arc::clone(&flag)));
    let mut found = Vec::new();
    let done = in_order(
        2,
        |push| (0..4).try_for_each(|_| push(())),
        is_flag,
        |is| {
            found.push(is);
            Ok::<(), ()>(())
        },
    );
    assert_eq!((done, found), (Ok(()), vec![true; 4]));
    let pushed = |push: &mut dyn FnMut(())| {
        (0..4).for_each(|_| push(()));
        Ok::<(), ()>(())
    };
    assert_eq!(alongside(pushed, is_flag), Ok(vec![true; 4]));
    set_cancel_flag(None);
    assert_eq!(alongside(pushed, |()| cancel_flag().is_none()), Ok(vec![true; 4]));
}

#[test]
fn work_alongside_returns_all_results_in_order_even_if_the_thread_is_slow() {
    let caller = thread::current().id();
    for sleep in [Duration::ZERO, Duration::from_millis(5)] {
        let results = alongside(
            |push| {
                (0..100u64).for_each(push);
                Ok::<(), ()>(())
            },
            |item| {
                let is_caller = thread::current().id() == caller;
                thread::sleep(if is_caller { Duration::ZERO } else { sleep });
                (item, is_caller)
            },
        );
        let results = results.unwrap();
        assert_eq!(results.iter().map(|(item, _)| *item).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        if thread_count(2) > 1 && !sleep.is_zero() {
            assert!(results.iter().any(|(_, is_caller)| *is_caller));
            assert!(results.iter().any(|(_, is_caller)| !*is_caller));
        }
    }
}

#[test]
fn an_error_or_a_panic_ends_the_work_alongside() {
    let act = |fed: u32, worked: u32| {
        alongside(
            |push| {
                (0..fed.min(100)).for_each(push);
                if fed < 100 { Err("feed") } else { Ok(()) }
            },
            |item| if item == worked { panic!("work") } else { item },
        )
    };
    assert_eq!(act(50, 200), Err("feed"));
    let panicked = catch_unwind(AssertUnwindSafe(|| act(200, 99))).unwrap_err();
    assert_eq!(panicked.downcast_ref::<&str>(), Some(&"work"));
}

#[test]
fn errors_and_panics_end_the_work() {
    for thread_count in [1, 3] {
        let act = |fed: u32, sunk: u32, worked: u32| {
            in_order(
                thread_count,
                |push| (0..100).try_for_each(|item| if item == fed { Err("feed") } else { push(item) }),
                |item| if item == worked { panic!("work") } else { item },
                |item| if item == sunk { Err("sink") } else { Ok(()) },
            )
        };
        assert_eq!(act(50, 200, 200), Err("feed"));
        assert_eq!(act(200, 99, 200), Err("sink"));
        let panicked = catch_unwind(AssertUnwindSafe(|| act(200, 200, 99))).unwrap_err();
        assert_eq!(panicked.downcast_ref::<&str>(), Some(&"work"));
    }
}
