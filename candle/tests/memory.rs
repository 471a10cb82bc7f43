//! The memory that loading a tensor takes: one copy, candle's own. The tests have a process of their own, whose
//! allocations are counted.
#![allow(clippy::unwrap_used, reason = "a failed test shows its location")]

use candle_core::{DType, Device, Tensor};
use peak_alloc::PeakAlloc;
use stridemap::Store;
use stridemap_candle::{from_candle, var_builder};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Runs `work`, and returns the peak of the memory in use beyond what was in use before.
fn taken_by<T>(work: impl FnOnce() -> T) -> (usize, T) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let made = work();
    (ALLOCATOR.peak_usage() - before, made)
}

const SIDE: usize = 2896; // 32 MiB of float32
const BYTES: usize = SIDE * SIDE * 4;

#[test]
fn loading_a_variable_takes_the_memory_of_one_copy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.smap");
    let store = Store::create(&path).unwrap();
    store.save("x", &stridemap::Tensor::from_vec(vec![1f32; SIDE * SIDE], &[SIDE, SIDE]).unwrap()).unwrap();
    store.save_view("x_t", &store.load("x").unwrap().t().unwrap()).unwrap();
    // SAFETY: only this test writes the store.
    let mapped = unsafe { Store::open_mapped(&path).unwrap() };

    // Before a transpose starts threads, it takes 4 MiB for each, for a moment. Elements of an unmapped file pass
    // through a buffer of 4 MiB.
    stridemap::set_num_threads(2);
    for (store, name, beside) in
        [(&mapped, "x", 1 << 20), (&mapped, "x_t", 9 << 20), (&store, "x", 1 << 20), (&store, "x_t", 9 << 20)]
    {
        let vb = var_builder(&store.snapshot(), "", DType::F32, &Device::Cpu);
        let (taken, tensor) = taken_by(|| vb.get((SIDE, SIDE), name).unwrap());
        assert!(
            (BYTES..BYTES + beside).contains(&taken),
            "{name} of {store:?} took {taken} bytes, and has {BYTES}"
        );
        assert_eq!(tensor.dims(), [SIDE, SIDE]);
    }

    let tensor = Tensor::ones((SIDE, SIDE), DType::F32, &Device::Cpu).unwrap();
    for tensor in [tensor.t().unwrap(), tensor] {
        let (taken, own) = taken_by(|| from_candle(&tensor).unwrap());
        assert!((BYTES..BYTES + (1 << 20)).contains(&taken), "from_candle took {taken} bytes for {BYTES}");
        assert_eq!(own.numel(), SIDE * SIDE);
    }
}
