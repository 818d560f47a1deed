#!/bin/bash
# Runs the tests and closes with "N passed, N failed", before it the lines of what failed.
#
#   run.sh                 every test in every build that its first line names, then the shell tests
#   run.sh BUILD TEST...   these tests in this build
#   run.sh NAME...         the shell tests of tests/NAME.sh alone: cli, cli_fsdp, docs, sessions, gpu, ...
#   run.sh ... TEST=NAME   of the tests in C only those called NAME, which may be a pattern
#
# A test's first line:  /* ranks: 8  builds: fp64 fp32
set -u
cd "$(dirname "$0")/.."
. tests/lib.sh
case ${*: -1} in TEST=*)
    export TEST=${*: -1}
    TEST=${TEST#TEST=}
    set -- "${@:1:$#-1}"
    ;;
esac

# The test that a program was in when it ended.
unfinished() {
    awk '/^\[ RUN      \]/ { name = $4 } /^\[ +(OK|FAILED|SKIPPED) +\]/ { name = "" } END { print name }'
}

run_binary() { # build, test, ranks
    local program=build/$1/$2 log status bad good name
    if [ "$1" = bf16 ] && [ -z "${HAVE_CUDA:-}" ]; then
        echo "skip $2 (bf16): this build has no CUDA"
        return
    fi
    if [ -z "$3" ]; then
        fails "$2 ($1): its first line names no ranks"
        return
    fi
    if [ ! -x "$program" ]; then
        fails "$2 ($1): not built"
        return
    fi
    log=$work/log
    local start=$SECONDS
    if [ "$3" = 1 ]; then
        timeout -k 5 240 "$program" > "$log" 2>&1
    else
        timeout -k 5 240 $MPIRUN -q -n "$3" "$program" > "$log" 2>&1
    fi
    status=$?
    good=$(grep -c '^\[       OK \]' "$log")
    passed=$((passed + good))
    if [ "$status" = 0 ]; then
        if [ "$good" = 0 ] && [ -n "${TEST:-}" ]; then
            echo "none $2 ($1): no test is called $TEST"
            return
        fi
        local skipped
        skipped=$(sed -n 's/^\[  SKIPPED \] \([a-z_0-9]*\)$/\1/p' "$log" | sort -u | tr '\n' ' ')
        echo "ok   $2 ($1, $3 ranks): $good tests, $((SECONDS - start)) s"
        [ -n "$skipped" ] && echo "     skipped ${skipped% }: $(head -1 "$log")"
        return
    fi
    bad=$(sed -n 's/^\[  FAILED  \] \([a-z_0-9]*\)$/\1/p' "$log" | sort -u)
    [ -n "$bad" ] || bad=$(unfinished < "$log")
    sed 's/^/     /' "$log"
    for name in ${bad:-"'*'"}; do
        fails "$2 ($1, $3 ranks), $name, status $status; again: ${AGAIN:-bash tests/run.sh $1 $2} TEST=$name"
    done
}

header() { # test, field: the words after "field:" in the first line of the test's source
    sed -n "1s/.*$2: *\([^:]*\).*/\1/p" "tests/$1.c" | sed 's/ *builds *$//; s/ *\*\/ *$//'
}

shell_tests() { # name: runs these tests in a folder of their own
    local all=$work
    shell_test=$1
    work=$all/$1
    mkdir "$work"
    [ "$1" = gpu ] || export CUDA_VISIBLE_DEVICES= # they hold what a machine without a GPU prints
    . "tests/$1.sh"
    work=$all
}

if [ $# -gt 0 ] && [ -f "tests/$1.sh" ]; then
    for name in "$@"; do shell_tests "$name"; done
elif [ $# -gt 0 ]; then
    build=$1
    shift
    for test in "$@"; do run_binary "$build" "$test" "$(header "$test" ranks)"; done
else
    for source in tests/test_*.c; do
        test=$(basename "$source" .c)
        builds=$(header "$test" builds)
        [ -n "$builds" ] || fails "$test: its first line names no build"
        for build in $builds; do run_binary "$build" "$test" "$(header "$test" ranks)"; done
    done
    shell_tests gpu
    for commands in tests/cli*.sh; do shell_tests "$(basename "$commands" .sh)"; done
    shell_tests docs
    shell_tests sessions
fi
[ -z "$failures" ] || printf '\nfailed:\n%s\n' "$failures"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
