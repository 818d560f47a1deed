# The sessions that documents show, run again. Sourced by run.sh.
#
#   <!-- gdb session --> ... <!-- end -->       its blocks hold a line that starts gdb, lines "(gdb) COMMAND", and what was printed
#   <!-- mistake -->     ... <!-- end -->       its blocks hold "$ diff FILE MINE" with the difference, and "$ make ..." that runs it
#
# What a document shows must be printed, line by line in this order; other lines may lie between. "..." in a line stands for
# anything; addresses and speeds may differ, and numbers by 0.1 %.

# prints EXPECTED ACTUAL: does the latter hold the former?
prints() {
    local mask="$differs_by_machine"'s/kernel [A-Za-z0-9]+/KERNEL/; s/process [0-9]+/PROCESS/; s/(no progress for [0-9]+ s|ended by a signal):/SILENT:/; s/0x[0-9a-f]+ in //; s/0x[0-9a-f]+/ADDRESS/g; s/[+][0-9]+>/>/g; s/rank ([0-9]+) on [^:]*:/rank \1 on HOST:/'
    awk '
        # words of a pattern from i on, of a line from j on
        function fits(i, j) {
            for (; i <= n; i++) {
                if (x[i] == "...") {
                    for (; j <= m + 1; j++) if (fits(i + 1, j)) return 1
                    return 0
                }
                if (j > m || !same(x[i], y[j])) return 0
                j++
            }
            return j > m
        }
        function same(a, b,    d) {
            if (a == b) return 1
            if (a !~ /^-?[0-9]+\.[0-9]+(e-?[0-9]+)?$/ || b !~ /^-?[0-9.]+(e-?[0-9]+)?$/) return 0
            d = a - b
            return d * d <= 1e-6 * a * a
        }
        FILENAME == ARGV[1] { if ($0 != "...") want[++wants] = $0; next }
        { got[++gots] = $0 }
        END {
            g = 0
            for (w = 1; w <= wants; w++) {
                n = split(want[w], x, /[ \t,(){}=<>]+/)
                do {
                    m = split(got[++g], y, /[ \t,(){}=<>]+/)
                } while (g <= gots && !fits(1, 1))
                if (g <= gots) continue
                print "the document has: " want[w]
                print "not printed, at least not after: " (w > 1 ? want[w - 1] : "the start")
                exit 1
            }
        }' <(sed -E "$mask" "$1") <(sed -E "$mask" "$2") > "$work/err"
}

# A line that begins with blanks goes on with the one before.
unfolded() {
    awk '/^[ \t]/ && NR > 1 { sub(/^[ \t]+/, " "); printf "%s", $0; next } { printf "%s%s", (NR > 1 ? "\n" : ""), $0 } END { print "" }'
}

# blocks DOCUMENT MARK N: what stands in the N-th such region, without the prose.
blocks() {
    awk -v mark="<!-- $2 -->" -v n="$3" '
        $0 == mark { region++; next }
        $0 == "<!-- end -->" { if (region == n) exit; next }
        /^```/ { inside = !inside; next }
        region == n && inside' "$1"
}

# Virtual machines may lack the registers. gdb then says "Hardware watchpoint" all the same, and never stops.
watchpoints_stop() {
    printf 'int watched;\nint main(void)\n{\n    watched = 1;\n    return watched - 1;\n}\n' > "$work/watched.c"
    ${CC:-cc} -g -O0 "$work/watched.c" -o "$work/watched" &&
        timeout -k 5 30 gdb -q -batch -ex start -ex 'watch -l watched' -ex continue "$work/watched" > "$work/out" 2>&1 < /dev/null
    grep -q '^Hardware watchpoint [0-9]*: ' "$work/out" && grep -q '^New value = 1$' "$work/out"
}

gdb_session() { # document, number
    local start lines of_rank_0='^(model|data|mesh|step) ?'
    blocks "$1" "gdb session" "$2" > "$work/session"
    if grep -q '^(gdb) watch ' "$work/session" && ! watchpoints_stop; then
        echo "skip $1: a session with a watchpoint; they do not work on this machine"
        return
    fi
    start=$(grep -m 1 -E '^(gdb|make gdb) ' "$work/session")
    sed -n 's/^(gdb) //p' "$work/session" > "$work/commands"
    grep -vE '^(\(gdb\)|gdb|make gdb) ' "$work/session" | unfolded > "$work/expected"
    GDB_ARGS="-batch -x $work/commands" timeout -k 5 120 bash -c "${start/#gdb /gdb -batch -x $work/commands }" \
        > "$work/out" 2> "$work/out.err" < /dev/null
    status=$?
    unfolded < "$work/out" > "$work/printed"
    for lines in expected printed; do # rank 0 prints when it likes, beside gdb on another rank
        grep -E "$of_rank_0" "$work/$lines" > "$work/$lines.0"
        grep -vE "$of_rank_0" "$work/$lines" > "$work/$lines.gdb"
    done
    both_print() {
        [ -s "$work/expected.gdb" ] && prints "$work/expected.gdb" "$work/printed.gdb" && prints "$work/expected.0" "$work/printed.0"
    }
    verdict "$1: $(wc -l < "$work/commands") commands after $start" both_print
}

# Where a mistake in a copy of a file hangs the job, the document also shows what common/tools/where says meanwhile.
mistake() { # document, number
    local file mine run lines tries here=$work/region
    blocks "$1" mistake "$2" > "$here"
    read -r file mine < <(sed -n 's/^\$ diff //p' "$here")
    run=$(sed -n 's/^\$ \(make .*\)/\1/p' "$here")
    awk '/^\$/ { inside = /^\$ diff/; next } inside' "$here" > "$work/difference"
    awk '/^\$/ { inside = /^\$ make/; next } inside' "$here" > "$work/expected"
    awk '/^\$/ { inside = /^\$ common\/tools\/where/; next } inside' "$here" | sed 's/^build[^ ]*/.../' > "$work/stacks"
    if ! patch -s -o "$work/$mine" "$file" "$work/difference" 2> "$work/err"; then
        verdict "$1: the difference fits $file" false
        return
    fi
    run=${run/SRC=$mine/SRC=$work/$mine}
    make --no-print-directory DEBUG=1 SRC="$work/$mine" tiny-ddp > "$work/out" 2>&1
    timeout -k 5 120 bash -c "$run" > "$work/out" 2>&1 < /dev/null &
    for ((tries = 0; tries < 10; tries++)); do
        [ -s "$work/stacks" ] || break
        sleep 1
        common/tools/where > "$work/out.where" 2>&1
        ! grep -q "$mine" "$work/out.where" || break
    done
    wait $!
    status=$?
    sed -i "s#$work/##g" "$work"/out*
    for lines in expected out; do LC_ALL=C sort -o "$work/$lines" "$work/$lines"; done # ranks speak in any order
    verdict "$1: ${run/$work\//}" prints "$work/expected" "$work/out"
    [ ! -s "$work/stacks" ] || verdict "$1: and common/tools/where meanwhile" prints "$work/stacks" "$work/out.where"
}

sessions() { # mark, command: all regions of all documents
    local document n
    for document in docs/*.md; do
        for n in $(seq "$(grep -cx "<!-- $1 -->" "$document")"); do $2 "$document" "$n"; done
    done
}

# May this user look at a process that is not a child, as common/tools/where does?
may_attach() {
    sleep 30 &
    local pid=$! good=0
    gdb -q -batch -p $pid -ex 'info registers' > "$work/out" 2>&1 < /dev/null
    ! grep -q '^rip ' "$work/out" || good=1
    kill $pid
    wait $pid 2> /dev/null
    [ $good = 1 ]
}

if ! gdb -q -batch -ex run true > /dev/null 2>&1; then
    echo "skip sessions in gdb: it is not here, or may not look at processes"
elif ! gdb --version | head -1 | grep -q ' 13\.' || [ "$(uname -m)" != x86_64 ]; then
    echo "skip sessions in gdb: the documents show version 13, on x86_64"
else
    make --no-print-directory PRECISION=fp32 DEBUG=1 all > "$work/out" 2>&1
    sessions "gdb session" gdb_session
    if ! may_attach; then
        echo "skip mistakes of documents: this user may not attach gdb to a process (kernel.yama.ptrace_scope)"
    elif command -v patch > /dev/null; then
        sessions mistake mistake
    else
        echo "skip mistakes of documents: no patch here"
    fi
fi
