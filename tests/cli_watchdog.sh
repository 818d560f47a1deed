# What the watchdog says, and when it ends a run. Sourced by run.sh.

hang=build/fp64/hang

# hangs SECONDS FLAGS...: a run of three ranks of hang; succeeds if it takes no longer.
hangs() {
    local begin=$SECONDS
    run 3 $hang "${@:2}"
    [ $((SECONDS - begin)) -le "$1" ]
}

reports() { # status, text...: the last run ended with this status and said all of this on stderr
    [ "$status" = "$1" ] || return 1
    shift
    for text in "$@"; do grep -qE -- "$text" "$work/err" || return 1; done
}

# --- all wait: the run ends, with a line per rank ---

verdict "a rank that never comes: the run ends in time" hangs 6 missing
verdict "each rank says where it waits" reports 1 '^rank 0: no progress for 1 s: waiting in all_reduce #2 on world \(8 elements, hang.c:[0-9]+\)$' \
    '^rank 1: no progress for 1 s: in MPI_Finalize, after all_reduce #1' '^rank 2: no progress for 1 s: waiting in all_reduce #2'
verdict "and nothing else" [ "$(wc -l < "$work/err")" = 3 ]
run 3 $hang kinds
verdict "other collectives: each rank says where it waits" reports 1 '^rank 1: .*waiting in broadcast #2' '^rank 2: .*waiting in all_reduce #2'
run 3 $hang to_all
verdict "all_to_all: the ranks say where they wait" reports 1 '^rank 0: .*waiting in all_to_all #2 on world \(2 elements' '^rank 2: .*waiting in all_to_all #2'
run 3 $hang ring
verdict "send_receive: so does the rank that gets nothing" reports 1 '^rank 2: .*waiting in send_receive #2 on world \(8 elements' '^rank 0: .*waiting in all_reduce #3'
run 3 $hang overlap
verdict "buffers that overlap are named, not used" reports 1 '^rank 1 on .*hang.c:[0-9]+: out and in of all_to_all overlap$'
run 3 build/fp64-debug/hang distance
verdict "debug: other distances are a message" reports 1 'rank 0: send_receive of 7 double, distance 1, at' 'rank 1: send_receive of 7 double, distance -1, at'
run 3 build/fp64-debug/hang mismatch
verdict "debug: other counts are a message, not a hang" reports 1 'mismatch on group world at collective #2' \
    'rank 0: all_reduce of 4 double' 'rank 1: all_reduce of 5 double'
run 3 build/fp64-debug/hang kinds
verdict "debug: other kinds are a message, not a hang" reports 1 'mismatch on group world' 'rank 1: broadcast of 8 double'

# --- some compute: one line, and the run goes on ---

run 3 $hang slow
verdict "a rank that computes for long is waited for" reports 0 \
    'have waited for 1 s, the run goes on; ranks 0, 2: waiting in all_reduce #2 on world \(8 elements, hang.c:[0-9]+\); rank 1: computing, after all_reduce #1 on world \(4 elements, hang.c:[0-9]+\)$'
verdict "which is said once" [ "$(wc -l < "$work/err")" = 1 ]
run 3 $hang leaves 0
verdict "also at the end of MPI" reports 0 'rank 0: computing, after all_reduce #2 .*; ranks 1, 2: in MPI_Finalize, after all_reduce #2'
run 1 $hang slow
verdict "a lone rank computes as long as it likes" [ $status = 0 -a ! -s "$work/err" ]
run 8 build/fp64/tiny-ddp --model nano --steps 1 --batch 400 --data LICENSE --timeout 0.3 --kernel linear=naive
verdict "eight ranks that compute are not ended" [ $status = 0 ]
run 3 $hang busy
verdict "signs of life keep the watchdog quiet" [ $status = 0 -a ! -s "$work/err" ]

# --- a rank is stopped or gone: it is named, and the run ends ---

for rank in 0 1; do
    verdict "rank $rank is stopped: the run ends in time" hangs 6 stop $rank
    verdict "it is named" reports 1 "^rank $rank: stopped \(process [0-9]+ is in state T\): computing, after all_reduce #1" \
        "^rank 2: no progress for .*waiting in all_reduce #2"
    verdict "once" [ "$(grep -c "^rank $rank:" "$work/err")" = 1 ]
    hangs 6 kill $rank
    verdict "rank $rank is killed: it is named" reports 137 "^rank $rank: gone \(process [0-9]+ has ended\): computing, after all_reduce #1"
    hangs 6 exit $rank
    verdict "rank $rank exits without a word: it is named" reports 1 "^rank $rank: gone"
done
verdict "a rank is stopped where it waits: the run ends in time" hangs 7 wait
verdict "it is named" reports 1 '^rank 1: stopped .*: waiting in all_reduce #2' '^rank 0: .*computing, after all_reduce #1'
verdict "rank 0 is stopped before the end of MPI: the run ends in time" hangs 6 last 0
verdict "it is named" reports 1 '^rank 0: stopped' '^rank 1: no progress for .* in MPI_Finalize, after all_reduce #2'

# A signal to rank 0 while the others wait for the twin, which it computes.
loses_the_twin() { # signal, timeout, status, what is said of rank 0
    : > "$work/err"
    $MPIRUN -q -n 2 build/fp64/tiny-ddp --model nano --batch 1000 --data LICENSE --verify --kernel linear=naive,attention=naive \
        --steps 3 --timeout "$2" > "$work/out" 2> "$work/err" < /dev/null &
    local launcher=$! victim= tries=0
    until grep -q 'the run goes on' "$work/err" || [ $((tries++)) -gt 300 ]; do sleep 0.1; done # "the run goes on"
    for process in /proc/[0-9]*; do
        [ "$(awk '{print $4}' "$process/stat" 2> /dev/null)" = "$launcher" ] &&
            grep -qz '^OMPI_COMM_WORLD_RANK=0$' "$process/environ" 2> /dev/null && victim=${process#/proc/}
    done
    [ -n "$victim" ] && kill -s "$1" "$victim"
    tries=0
    while kill -0 "$launcher" 2> /dev/null && [ $((tries++)) -lt 80 ]; do sleep 0.1; done
    kill -9 "$launcher" 2> /dev/null && kill -9 "$victim" 2> /dev/null && return 1 # it should have ended by itself
    wait "$launcher"
    status=$?
    reports "$3" 'the run goes on; .*rank 1: waiting in .* on control .*verify.c' "^rank 0: $4"
}
verdict "rank 0 is stopped while it computes the twin" loses_the_twin STOP 0.5 1 'stopped \(process [0-9]+ is in state T\): computing'
verdict "rank 0 is killed while it computes the twin" loses_the_twin KILL 0.5 137 'gone'

# --- the watchdog is off ---

left_alone() { # a rank is stopped for longer than any limit above, and goes on
    : > "$work/out"
    $MPIRUN -q -n 2 build/fp64/tiny-ddp --model nano --data LICENSE --steps 1000000 --timeout 0 > "$work/out" 2> "$work/err" < /dev/null &
    local launcher=$! victim= tries=0 before after
    until [ "$(wc -l < "$work/out")" -gt 5 ] || [ $((tries++)) -gt 300 ]; do sleep 0.1; done
    for process in /proc/[0-9]*; do
        [ "$(awk '{print $4}' "$process/stat" 2> /dev/null)" = "$launcher" ] && victim=${process#/proc/}
    done
    kill -STOP "$victim"
    sleep 1
    before=$(wc -l < "$work/out")
    kill -CONT "$victim"
    sleep 0.3
    after=$(wc -l < "$work/out")
    kill -TERM "$launcher"
    wait "$launcher"
    status=$?
    [ "$after" -gt "$before" ]
}
verdict "--timeout 0: a rank may be stopped, and go on" left_alone
[ -z "$(ls /dev/shm/*tiny-peers* 2> /dev/null)" ] || verdict "nothing stays in /dev/shm" false
