//! What only documentation tests compile: statements that must warn, and the examples of the documents.

// Checks that the compiler warns about statements that do nothing, and not if their value is discarded explicitly.
macro_rules! warns {
    ($($statement:literal)*) => {
        $(
            #[doc = concat!(
                "```compile_fail\n#![deny(unused_must_use)]\n",
                "fn f(store: &stridemap::Store, x: &stridemap::Tensor) -> stridemap::Result<()> {\n",
                $statement, ";\nOk(())\n}\nfn main() {}\n```\n",
                "```no_run\n#![deny(unused_must_use)]\n",
                "fn f(store: &stridemap::Store, x: &stridemap::Tensor) -> stridemap::Result<()> {\nlet _ = ",
                $statement, ";\nOk(())\n}\nfn main() {}\n```\n",
            )]
        )*
        mod statements {}
    };
}

warns! {
    "store.begin()?"
    "store.begin_exclusive()?"
    "store.snapshot()"
    "store.load(\"x\")?"
    "store.snapshot().load(\"x\")?"
    "store.appender(\"x\")?"
    "store.verify(|_| ())?"
    "store.disk_usage()?"
    "store.snapshot().changes_since(&store.snapshot())?"
    "stridemap::StoreOptions::new().durability(stridemap::Durability::Process)"
    "x.t()?"
    "x.select(0, 1)?"
    "x.to_dtype(stridemap::DType::F64)?"
    "x.contiguous()?"
    "x.lock_shared()?"
    "x.lock_exclusive()?"
    "x.lock_shared()?.at(x)?"
    "x.typed::<f32>()?"
    "x.as_live::<i64>()?"
    "x.statistics(|_| ())?"
}

/// Runs the Rust examples of the README and of the guide as tests.
#[cfg(all(doctest, feature = "ndarray", feature = "dlpack"))]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/getting-started.md")]
    mod getting_started {}
    #[doc = include_str!("../docs/cli.md")]
    mod cli {}
    #[doc = include_str!("../docs/twelve-jobs.md")]
    mod twelve_jobs {}
    #[doc = include_str!("../docs/inspecting.md")]
    mod inspecting {}
    #[doc = include_str!("../docs/elements.md")]
    mod elements {}
    #[doc = include_str!("../docs/scripts.md")]
    mod scripts {}
    #[doc = include_str!("../docs/json.md")]
    mod json {}
    #[doc = include_str!("../docs/views.md")]
    mod views {}
    #[doc = include_str!("../docs/mixture-of-experts.md")]
    mod mixture_of_experts {}
    #[doc = include_str!("../docs/mutable-and-live.md")]
    mod mutable_and_live {}
    #[doc = include_str!("../docs/growing.md")]
    mod growing {}
    #[doc = include_str!("../docs/file-formats.md")]
    mod file_formats {}
    #[doc = include_str!("../docs/external-files.md")]
    mod external_files {}
    #[doc = include_str!("../docs/history.md")]
    mod history {}
    #[doc = include_str!("../docs/remotes.md")]
    mod remotes {}
    #[doc = include_str!("../docs/disk-space.md")]
    mod disk_space {}
    #[doc = include_str!("../docs/python.md")]
    mod python {}
    #[doc = include_str!("../docs/damage-and-salvage.md")]
    mod damage_and_salvage {}
    #[doc = include_str!("../docs/guarantees.md")]
    mod guarantees {}
}
