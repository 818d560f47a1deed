# The tools that look at a job, where something that they need is missing. Sourced by run.sh.

# A folder of commands that lacks some: every other command of /usr/bin and /bin is there.
without() { # command...
    rm -rf "$work/bin"
    mkdir "$work/bin"
    ln -s /usr/bin/* /bin/* "$work/bin" 2> /dev/null
    for command in "$@"; do rm -f "$work/bin/$command"; done
}
names_gdb() { [ $status != 0 ] && [ "$(grep -c 'no gdb here (Debian: apt-get install gdb)' "$work/err")" = 1 ]; }

without gdb pgrep
PATH=$work/bin common/tools/where > "$work/out" 2> "$work/err"
status=$?
verdict "where says that gdb is missing, and fails" names_gdb
PATH=$work/bin common/tools/gdb-rank true > "$work/out" 2> "$work/err"
status=$?
verdict "gdb-rank too" names_gdb
PATH=$work/bin make --no-print-directory gdb NP=2 > "$work/out" 2> "$work/err" < /dev/null
status=$?
verdict "make gdb too" names_gdb

# With a stand-in for gdb, which says that it was called.
printf '#!/bin/sh\necho gdb "$@"\n' > "$work/bin/gdb"
printf '#!/bin/sh\necho no mpirun >&2\nexit 1\n' > "$work/bin/mpirun.none"
chmod a+x "$work/bin/gdb" "$work/bin/mpirun.none"
PATH=$work/bin make --no-print-directory gdb NP=1 MPIRUN=mpirun.none ARGS="--model nano" > "$work/out" 2> "$work/err" < /dev/null
status=$?
verdict "make gdb NP=1 needs no mpirun" grep -q '^gdb .*/tiny-ddp --device cpu --timeout 0 --model nano$' "$work/out"
make --no-print-directory gdb NP=2 RANK=2 > "$work/out" 2> "$work/err" < /dev/null
status=$?
verdict "make gdb refuses a rank that is not there" said 2 '^RANK=2: must be less than NP=2'

$ddp --model nano --data LICENSE --steps 1000000 > "$work/run" 2>&1 &
process=$!
tries=0
until [ "$(wc -l < "$work/run")" -gt 4 ] || [ $((tries++)) -gt 300 ]; do sleep 0.1; done
PATH=$work/bin common/tools/where > "$work/out" 2> "$work/err"
status=$?
kill $process
wait $process 2> /dev/null
verdict "where finds a process without pgrep" grep -q "^rank 0, process $process$" "$work/out"
PATH=$work/bin common/tools/where no-such-program > "$work/out" 2> "$work/err"
status=$?
verdict "where fails if nothing of that name runs" said 1 '^where: no no-such-program runs on this host'
