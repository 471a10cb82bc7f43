#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a number of seconds. See fuzz/README.md.
#
#   fuzz/run.sh [-j JOBS] [-s SEED] [-a] SECONDS [TARGET...]
#
#   -j JOBS   the number of targets to run at the same time (default: 2)
#   -s SEED   the seed of the random choices, for a repeatable run (default: random)
#   -a        run with AddressSanitizer and its leak check
#
# With SECONDS 0, only the seeds are run. If a target finds a failure, this exits with an error. The input is then in
# fuzz/target/found/, and the target's log in fuzz/target/logs/.
set -euo pipefail
cd "$(dirname "$0")"

usage() { sed -n 's/^#   fuzz/usage: fuzz/p' run.sh >&2; exit 2; }
jobs=2 address= chosen=0
while getopts j:s:a option; do
    case $option in
        j) jobs=$OPTARG ;;
        s) chosen=$OPTARG ;;
        a) address=yes ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[[ ${1-} =~ ^[0-9]+$ && $jobs =~ ^[1-9][0-9]*$ && $chosen =~ ^[0-9]+$ ]] || usage
seconds=$1
shift
mapfile -t all < <(sed -n 's|^path = "targets/\(.*\)\.rs"|\1|p' Cargo.toml)
[ $# -gt 0 ] || set -- "${all[@]}"
for target in "$@"; do
    [ -f "targets/$target.rs" ] || { echo "no target $target; the targets are: ${all[*]}" >&2; exit 2; }
done

# The libfuzzer-sys crate contains libFuzzer as C++ source.
command -v "${CXX:-c++}" >/dev/null || {
    echo "fuzz/run.sh needs a C++ compiler: apt-get install g++" >&2
    exit 2
}

# The coverage flags that libFuzzer needs, for the stable compiler. With an explicit --target, they do not apply to
# build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
memory_factor=1
built=target
if [ -n "$address" ]; then
    # The stable compiler accepts -Z options only with this variable.
    export RUSTC_BOOTSTRAP=1
    flags="$flags -Zsanitizer=address"
    memory_factor=4
    built=target/address
fi
bins=()
for target in "$@"; do bins+=(--bin "$target"); done
RUSTFLAGS=$(echo $flags) cargo build --locked --release --target "$host" --target-dir "$built" "${bins[@]}"
built=$built/$host/release

# Files and stores are created in memory, and deleted when this script exits.
scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/stridemap-fuzz.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mkdir -p target/{corpus,found,logs}

# Returns the maximum input length and the other options of a target.
options_of() {
    case $1 in
        marker) echo -max_len=96 ;;
        manifest) echo -max_len=8192 ;;
        table) echo -max_len=24576 ;;
        remote) echo -max_len=12000 ;;
        # An operation that splits a view holds all parts in memory.
        expr) echo "-max_len=512 -dict=dicts/expr.dict -rss_limit_mb=$((1024 * memory_factor)) -malloc_limit_mb=700" ;;
        store) echo -max_len=40000 ;;
        malformed) echo -max_len=600 ;;
        zip) echo -max_len=1500 ;;
        *) echo -max_len=4096 ;;
    esac
}

# Returns the golden vectors and checkpoints that are additional seeds of a target.
seeds_of() {
    case $1 in
        marker) echo ../format/vectors/*/*.format ;;
        manifest) echo ../format/vectors/*/*.man ;;
        table) echo ../format/vectors/*/*.tab ../format/vectors/*/*.his ;;
        remote) echo ../format/vectors/remotes/*/*.head ../format/vectors/remotes/*/*.remote ../format/vectors/remotes/*/*.page ;;
        gguf) echo ../interop/tests/data/gguf/*.gguf ;;
        pickle) echo ../interop/tests/data/pt/*.pt ../interop/tests/data/pt_more/*.pt ;;
    esac
}

run_one() {
    local target=$1 corpus=target/corpus/$1 limit=(-max_total_time="$seconds")
    [ "$seconds" != 0 ] || limit=(-runs=0)
    mkdir -p "$corpus" "$scratch/$target/more"
    local seed number=0
    for seed in $(seeds_of "$target"); do
        # Files in different folders may have the same name.
        number=$((number + 1))
        cp "$seed" "$scratch/$target/more/$number"
    done
    STRIDEMAP_FUZZ_DIR="$scratch/$target" TMPDIR="$scratch/$target" "$built/$target" "${limit[@]}" -seed="$chosen" -timeout=10 \
        -rss_limit_mb=$((512 * memory_factor)) -malloc_limit_mb=128 -print_final_stats=1 \
        -artifact_prefix="target/found/$target-" $(options_of "$target") \
        "$corpus" "seeds/$target" "$scratch/$target/more" > "target/logs/$target.log" 2>&1 ||
        touch "$scratch/$target.failed"
    rm -rf "${scratch:?}/$target"
}

running=0
for target in "$@"; do
    run_one "$target" &
    running=$((running + 1))
    [ "$running" -lt "$jobs" ] || { wait -n || true; running=$((running - 1)); }
done
wait

printf '%-12s %12s %8s %9s %9s %7s\n' target executions edges features inputs "RSS MiB"
failed=
for target in "$@"; do
    log=target/logs/$target.log
    last=$(grep -a '^#.* cov: ' "$log" | tail -1)
    field() { sed -n "s/.* $1: \([0-9]*\).*/\1/p" <<< "$last"; }
    stat() { sed -n "s/^stat::$1: *//p" "$log"; }
    printf '%-12s %12s %8s %9s %9s %7s\n' "$target" "$(stat number_of_executed_units)" "$(field cov)" \
        "$(field ft)" "$(field corp)" "$(stat peak_rss_mb)"
    [ ! -e "$scratch/$target.failed" ] || failed="$failed $target"
done
for target in $failed; do
    printf '\n%s found a failure:\n' "$target"
    grep -av '^#\|^DE: \|# Uses: ' "target/logs/$target.log" | tail -40
done
[ -z "$failed" ]
