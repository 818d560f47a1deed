# What the shell tests share. Sourced.
MPIRUN=${MPIRUN:-mpirun}
passed=0
failed=0
failures="" # their lines
work=$(mktemp -d) || exit 1 # nothing may be written, or removed, at /
trap "rm -rf '$work'" EXIT
status=0 # of the last run
: > "$work/out"
: > "$work/err"
export ASAN_OPTIONS=detect_leaks=0 # Open MPI leaks
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# fails TEXT: counts one test that failed; run.sh repeats the line at its end.
fails() {
    failed=$((failed + 1))
    failures+="${failures:+$'\n'}FAIL $1"
    echo "FAIL $1"
}

# verdict NAME CONDITION...: counts one test; on failure shows what the last run printed.
verdict() {
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        echo "ok   $name"
    else
        fails "$name${shell_test:+; again: bash tests/run.sh $shell_test}"
        echo "     not $*"
        echo "     status $status, $(wc -l < "$work/out") lines on stdout, stderr:"
        sed 's/^/     /' "$work/err" | head -20
    fi
}

# run RANKS COMMAND...: leaves $status, $work/out and $work/err. mpirun's own remarks are left out of the latter.
run() {
    local ranks=$1
    shift
    timeout -k 5 120 $MPIRUN -q -n "$ranks" "$@" > "$work/out" 2> "$work/err.all" < /dev/null
    status=$?
    grep -vE '^\[hwloc|^-----|^$|^Primary job|^a non-zero exit|^mpirun |^the job to be|^  Process name|^  Exit code' "$work/err.all" > "$work/err"
}

# What the tests of a command line run, and the flags of a short run.
ddp=build/fp32/tiny-ddp
nano="--model nano --steps 3 --data LICENSE"

# said STATUS TEXT...: the last run ended with this status and said all of this on stderr.
said() {
    [ "$status" = "$1" ] || return 1
    shift
    for text in "$@"; do grep -qE -- "$text" "$work/err" || return 1; done
}

# refused NAME TEXT RANKS FLAGS...: bad input is one line on stderr that holds the text, status 2, no hang, nothing written.
refused() {
    local name=$1 text=$2 ranks=$3
    shift 3
    rm -rf "$work/new"
    mkdir "$work/new"
    run "$ranks" $ddp "$@" --log "$work/new/log" --trace "$work/new/trace" --dump "$work/new/dump"
    one_line() {
        [ "$status" = 2 ] && [ "$(wc -l < "$work/err")" = 1 ] && grep -qF -- "$text" "$work/err" &&
            [ -z "$(ls "$work/new")" ] && ! grep -q '^step' "$work/out"
    }
    verdict "refused: $name" one_line
}

# loses_a_rank SIGNAL SECONDS RANKS PROGRAM FLAGS...: starts an endless run, sends the signal to one of its ranks, and succeeds if
# the whole run has then ended, and failed, within so many seconds.
loses_a_rank() {
    local signal=$1 seconds=$2 ranks=$3
    shift 3
    $MPIRUN -q -n "$ranks" "$@" --steps 1000000 > "$work/out" 2> "$work/err" < /dev/null &
    local launcher=$! victim tries=0
    until [ "$(wc -l < "$work/out")" -gt 5 ] || [ $((tries++)) -gt 300 ]; do sleep 0.1; done
    for process in /proc/[0-9]*; do # a child of the launcher that runs the trainer; minimal systems have no pgrep
        [ "$(awk '{print $4}' "$process/stat" 2> /dev/null)" = "$launcher" ] && victim=${process#/proc/}
    done
    kill -s "$signal" "$victim"
    tries=0
    while kill -0 "$launcher" 2> /dev/null && [ $((tries++)) -lt $((seconds * 10)) ]; do sleep 0.1; done
    kill -9 "$victim" 2> /dev/null
    kill -9 "$launcher" 2> /dev/null && return 1 # it should have ended by itself
    wait "$launcher"
    status=$?
    [ "$status" != 0 ]
}

# overlaps FILE KIND: how often such a collective is under way while a layer computes, on rank 0.
overlaps() {
    tr -d '{}"' < "$1" | awk -F, -v kind="$2" '
        /^ph:X/ && /pid:0/ {
            for (i = 1; i <= NF; i++) { split($i, f, ":"); v[f[1]] = f[2] }
            if (v["cat"] == "compute" && v["name"] ~ /^layer/) { begin[++n] = v["ts"]; end[n] = v["ts"] + v["dur"] }
            if (v["name"] == kind) { from[++g] = v["ts"]; to[g] = v["ts"] + v["dur"] }
        }
        END { for (i = 1; i <= g; i++) for (j = 1; j <= n; j++) if (from[i] < end[j] && to[i] > begin[j]) both++
              print both + 0 }'
}

# For sed -E: what of a run's output differs between machines. Documents are compared without it.
differs_by_machine='s/; OPENBLAS_CORETYPE=[A-Za-z]+ is faster//; s/[0-9.]+[kMG]? tok\/s/SPEED/; s/[0-9.]+ GFLOP\/s/RATE/; s/threads: [0-9]+/THREADS/; '

# The last run verified itself, and its ledger had nothing to object to.
verified() { [ "$status" = 0 ] && grep -q '^verify: PASS' "$work/out" && ! grep -q DIFFERS "$work/out"; }
