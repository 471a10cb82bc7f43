//! Chains on a live storage: reads and writes through the last view affect the elements that the model says.

use proptest::prelude::*;
use stridemap::{ErrorKind, LiveTensor, StorageKind};

use super::model::{Model, number, place};
use super::{Draws, chains, config, counted, follow};
use crate::harness::fast;
use crate::support::temporary;

/// Runs every operation on a view. `held` is the expected content of its storage, by element.
fn change(live: &LiveTensor<i64>, model: &Model, held: &mut [i64], draws: &mut Draws) {
    let ids = &model.ids;
    let values = |held: &[i64]| ids.iter().map(|&id| held[id]).collect::<Vec<_>>();
    assert_eq!(live.read().unwrap(), values(held), "{live:?}");

    let written: Vec<i64> = ids.iter().map(|_| draws.next() as i64).collect();
    live.write_from(&written).unwrap();
    ids.iter().zip(&written).for_each(|(&id, &value)| held[id] = value);
    assert_eq!(live.read().unwrap(), written, "{live:?}");

    for _ in 0..4 {
        let index: Vec<isize> = model.size.iter().map(|&n| draws.position(n)).collect();
        let at: Result<Vec<usize>, _> = index.iter().zip(&model.size).map(|(&i, &n)| place(i, n)).collect();
        let at = at.map(|at| ids[number(&at, &model.size)]);
        let added = live.fetch_add(&index, 5);
        assert_eq!(added.map_err(|e| e.kind()), at.map(|id| held[id]), "{index:?} of {live:?}");
        assert_eq!(live.set(&index, -1).map_err(|e| e.kind()), at.map(drop));
        let Ok(id) = at else { continue };
        held[id] = -1;
        assert_eq!(live.compare_exchange(&index, -1, 3).unwrap(), Ok(-1));
        assert_eq!(live.get(&index).unwrap(), 3);
        held[id] = 3;
    }

    if let Some((&rows, _)) = model.size.split_first()
        && let Some(row_elems) = ids.len().checked_div(rows)
    {
        for row in 0..rows {
            let own = &ids[row * row_elems..][..row_elems];
            let mut read = vec![0; row_elems];
            let view = live.view(|live| live.select(0, row)).unwrap();
            view.read_into(&mut read).unwrap();
            assert_eq!(read, own.iter().map(|&id| held[id]).collect::<Vec<_>>(), "{row} of {live:?}");
            read.reverse();
            view.write_from(&read).unwrap();
            own.iter().zip(&read).for_each(|(&id, &value)| held[id] = value);
        }
    }
    assert_eq!(live.read().unwrap(), values(held), "{live:?}");
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn chain_on_a_live_storage_reads_and_writes_like_the_model((size, chain) in chains()) {
        let (dir, options) = (temporary(), fast());
        let path = dir.path().join("live.smap");
        let (base, of_base) = counted(&size, chain[0]);
        let of_base = Model { is_borrowable: false, ..of_base };
        options.create(&path).unwrap().write(|txn| txn.save_as("base", &base, StorageKind::Live)).unwrap();
        // SAFETY: no other process knows this directory.
        let store = unsafe { options.open_mapped(&path).unwrap() };
        let base = store.load("base").unwrap();
        let (view, model, _) = follow(base.clone(), of_base.clone(), &chain);
        let live = view.as_live::<i64>();
        if !model.shares_storage(&of_base) {
            prop_assert_eq!(live.unwrap_err().kind(), ErrorKind::Unsupported);
        } else if model.overlaps_itself() {
            prop_assert_eq!(live.unwrap_err().kind(), ErrorKind::Unsupported);
        } else {
            let mut held = of_base.values();
            let mut draws = Draws::new(chain[0]);
            change(&live.unwrap(), &model, &mut held, &mut draws);
            prop_assert_eq!(base.read::<i64>().unwrap(), &held[..]);
            let whole = base.as_live::<i64>().unwrap();
            whole.view(|_| Ok(view.clone())).unwrap().fill(8);
            model.ids.iter().for_each(|&id| held[id] = 8);
            prop_assert_eq!(whole.read().unwrap(), held);
        }
    }
}
