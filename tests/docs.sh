# The commands in the READMEs, run; what they print, compared with what the README says. Sourced by run.sh.
#
# A block ```console holds commands ("$ make demo") and their output. In it, a line "..." stands for any lines; speeds,
# rounding errors, kernel and file names may differ; other numbers must agree to 1 %, or to what a comment before the block
# says: <!-- tolerance 0.2 -->.

# matches EXPECTED ACTUAL TOLERANCE: does the output match the document?
matches() {
    local mask="$differs_by_machine"'s/[0-9.]+e[-+][0-9]+/SMALL/g; s/(OpenBLAS, kernel [A-Za-z0-9]+|no BLAS[^,]*)/BLAS/; s/^data [^:]*:/data:/; s/ +$//'
    awk -v tolerance="$3" '
        function number(t) { return t ~ /^-?[0-9]+(\.[0-9]+)?$/ }
        function same(a, b,    x, y, n, i) {
            n = split(a, x, /[ ,()]+/)
            if (split(b, y, /[ ,()]+/) != n) return 0
            for (i = 1; i <= n; i++) {
                if (x[i] == y[i]) continue
                if (!number(x[i]) || !number(y[i])) return 0
                d = x[i] - y[i]; if (d < 0) d = -d
                s = y[i] < 0 ? -y[i] : y[i]
                if (d > tolerance * s + 1e-9) return 0
            }
            return 1
        }
        FILENAME == ARGV[1] { want[++wants] = $0; next }
        { got[++gots] = $0 }
        END {
            g = 1; skip = 0
            for (w = 1; w <= wants; w++) {
                if (want[w] == "...") { skip = 1; continue }
                if (skip) while (g <= gots && !same(got[g], want[w])) g++
                if (g > gots || !same(got[g], want[w])) {
                    print "expected: " want[w]; print "printed:  " (g > gots ? "(nothing more)" : got[g])
                    exit 1
                }
                g++; skip = 0
            }
            if (!skip && g <= gots) { print "also printed: " got[g]; exit 1 }
        }' <(sed -E "$mask" "$1") <(sed -E "$mask" "$2") > "$work/err"
}

check_command() { # document, command, file with the expected output, tolerance
    timeout -k 5 400 bash -c "$2" > "$work/out" 2> "$work/out.err" < /dev/null
    status=$?
    verdict "$1: $2" matches "$3" "$work/out" "$4"
}

check_document() {
    local line inside=0 command="" tolerance=0.01
    while IFS= read -r line; do
        if [[ $line =~ ^'<!-- tolerance '([0-9.]+) ]]; then
            tolerance=${BASH_REMATCH[1]}
        elif [ "$line" = '```console' ]; then
            inside=1
        elif [ $inside = 1 ] && { [ "$line" = '```' ] || [[ $line == '$ '* ]]; }; then
            [ -n "$command" ] && check_command "$1" "$command" "$work/expected" "$tolerance"
            command=""
            : > "$work/expected"
            if [ "$line" = '```' ]; then
                inside=0
                tolerance=0.01
            else
                command=${line#\$ }
            fi
        elif [ $inside = 1 ]; then
            echo "$line" >> "$work/expected"
        fi
    done < "$1"
}

make --no-print-directory all > "$work/out" 2>&1 # the folders' programs as they are where no GPU is visible
for document in README.md tiny-*/README.md docs/*.md; do check_document "$document"; done
