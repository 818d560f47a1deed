#!/bin/bash
# Runs the tests and closes with "N passed, N failed".
#
#   run.sh                 every test in every build that its first line names, then the command-line tests
#   run.sh BUILD TEST...   these tests in this build
#
# A test's first line:  /* ranks: 8  builds: fp64 fp32
set -u
cd "$(dirname "$0")/.."
. tests/lib.sh

run_binary() { # build, test, ranks
    local program=build/$1/$2 log status
    if [ "$1" = bf16 ] && [ -z "${HAVE_CUDA:-}" ]; then
        echo "skip $2 (bf16): this build has no CUDA"
        return
    fi
    log=$(mktemp) || exit 1
    if [ ! -x "$program" ]; then
        echo "FAIL $2 ($1): not built"
        failed=$((failed + 1))
        return
    fi
    local start=$SECONDS
    if [ "$3" = 1 ]; then
        timeout -k 5 240 "$program" > "$log" 2>&1
    else
        timeout -k 5 240 $MPIRUN -q -n "$3" "$program" > "$log" 2>&1
    fi
    status=$?
    local good
    good=$(grep -c '^\[       OK \]' "$log")
    local bad
    bad=$(grep -c '^\[  FAILED  \] [a-z_0-9]*$' "$log")
    bad=$((bad / 2)) # cmocka names a failed test twice
    [ "$status" != 0 ] && [ "$bad" = 0 ] && bad=1
    passed=$((passed + good))
    failed=$((failed + bad))
    if [ "$bad" = 0 ]; then
        local skipped
        skipped=$(sed -n 's/^\[  SKIPPED \] \([a-z_0-9]*\)$/\1/p' "$log" | sort -u | tr '\n' ' ')
        echo "ok   $2 ($1, $3 ranks): $good tests, $((SECONDS - start)) s"
        [ -n "$skipped" ] && echo "     skipped ${skipped% }: $(head -1 "$log")"
    else
        echo "FAIL $2 ($1, $3 ranks), status $status:"
        cat "$log"
    fi
    rm -f "$log"
}

header() { # test, field: the words after "field:" in the first line of the test's source
    sed -n "1s/.*$2: *\([^:]*\).*/\1/p" "tests/$1.c" | sed 's/ *builds *$//; s/ *\*\/ *$//'
}

if [ $# -gt 0 ]; then
    build=$1
    shift
    for test in "$@"; do run_binary "$build" "$test" "$(header "$test" ranks)"; done
else
    for source in tests/test_*.c; do
        test=$(basename "$source" .c)
        for build in $(header "$test" builds); do run_binary "$build" "$test" "$(header "$test" ranks)"; done
    done
    . tests/gpu.sh
    export CUDA_VISIBLE_DEVICES= # what follows is what a machine without a GPU prints
    for commands in tests/cli*.sh; do . "$commands"; done
    . tests/docs.sh
    . tests/sessions.sh
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
