//! Checks that the compiler warns about statements that do nothing, and not if their value is discarded explicitly.

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
