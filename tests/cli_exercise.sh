# The exercise that has a student write tiny-ddp/ddp.c: the README's skeleton compiles, and make test-ddp says what is wrong with
# it, which test said so, and how to run that one again. Sourced by run.sh.

mine=build/exercise/my_ddp.c # always the same, so that the rest is compiled once
mkdir -p build/exercise

tests_mine() { # settings and variables for make
    make --no-print-directory test-ddp SRC=$mine DEBUG=1 "$@" > "$work/out" 2> "$work/err" < /dev/null
    status=$?
}

printed() { # text...: the last run failed and printed all of this
    [ "$status" != 0 ] || return 1
    for text in "$@"; do grep -qE -- "$text" "$work/out" "$work/err" || return 1; done
}

awk '/^<!-- file my_ddp.c -->/ { found = 1; next } found && /^```$/ { exit } found && !/^```/' tiny-ddp/README.md > $mine
tests_mine TEST=batch_is_cut_by_micro_step
verdict "the skeleton of exercise 2 compiles, and make test-ddp honours DEBUG and TEST" [ $status = 0 -a "$(grep -c '^ok   test_ddp (fp64-debug-mine, 8 ranks): 1 tests' "$work/out")" = 1 ]
tests_mine TEST=equals_single_device
verdict "it sums nothing, and a failed test names the command that runs it again" printed \
    'dp all_reduce: 0 calls 0 bytes' '^FAIL test_ddp \(fp64-debug-mine, 8 ranks\), equals_single_device, status 1; again: make test-ddp .*SRC=build/exercise/my_ddp.c.* TEST=equals_single_device$'
verdict "which stands just before the count" [ "$(tail -2 "$work/out" | head -1 | cut -c 1-13)" = "FAIL test_ddp" ]
tests_mine TEST=no_such_test
verdict "a TEST that does not exist is no success" printed '^none test_ddp .*no test is called no_such_test' '^0 passed, 0 failed'

sum='comm_all_reduce(ddp->group, ddp->params->grads, ddp->params->count, COMM_ACC, COMM_SUM)'
sed -i "s|^    (void)ddp; /\* the gradients.*|    $sum;|" $mine
tests_mine TEST=equals_single_device
verdict "the naive form has the numbers and the bytes, and is told that it makes too few calls" printed \
    'dp all_reduce: 1 calls ([0-9]+) bytes, formula [2-9] calls \1 bytes'

# The commonest mistakes: on one rank.
sed -i "s|^    comm_all_reduce|    if (group_rank(ddp->group) != 1) comm_all_reduce|" $mine
TEST_SECONDS=3 tests_mine TEST=same_curve
verdict "a rank that skips a collective is named by the debug build" printed 'mismatch on group' 'rank [1-7]: '
sed -i "s|^    if (group_rank.*|    if (group_rank(ddp->group) == 1) comm_all_reduce(comm_world(), ddp->params->grads, 1, COMM_ACC, COMM_SUM);|" $mine
TEST_SECONDS=2 tests_mine TEST=same_curve
verdict "and one that waits in another group by its own watchdog" printed 'rank 1: no progress for .*waiting in all_reduce #1 on world' 'rank [2-7]: .*waiting in' '^FAIL test_ddp .* same_curve,'
sed -i "s|^    if (group_rank.*|    if (group_rank(ddp->group) == 1) __builtin_trap();|" $mine
tests_mine TEST=same_curve
verdict "a rank that crashes is named" printed '^ +rank 1: (Illegal instruction|Trace/breakpoint trap) in test same_curve'
