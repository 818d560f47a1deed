# What run.sh notices by itself, in a tree with tests of its own. Sourced by run.sh.

tree=$work/harness
mkdir -p "$tree/tests" "$tree/build/fp64"
cp tests/run.sh tests/lib.sh "$tree/tests"
for none in gpu cli_none docs sessions; do : > "$tree/tests/$none.sh"; done
echo '/* ranks: 1  builds: fp64 fp32' > "$tree/tests/test_half.c"
echo '/* ranks: 1' > "$tree/tests/test_forgotten.c"
cat > "$tree/build/fp64/test_half" << 'END_OF_TEST'
#!/bin/sh
printf '[ RUN      ] good\n[       OK ] good\n[ RUN      ] ends_early\nrank 1: lost\n'
exit 3
END_OF_TEST
chmod a+x "$tree/build/fp64/test_half"
bash "$tree/tests/run.sh" > "$work/out" 2> "$work/err"
status=$?
verdict "run.sh fails, and counts" [ $status = 1 -a "$(tail -1 "$work/out")" = "1 passed, 3 failed" ]
repeats() {
    sed -n '/^failed:$/,$p' "$work/out" > "$work/summary"
    [ "$(grep -c '^FAIL' "$work/summary")" = 3 ] && grep -qx "FAIL $1" "$work/summary"
}
verdict "a test of no build is noticed, and repeated at the end" repeats 'test_forgotten: its first line names no build'
verdict "a test that was not built is" repeats 'test_half (fp32): not built'
verdict "the test in which a program ended is named, with the command that runs it" repeats \
    'test_half (fp64, 1 ranks), ends_early, status 3; again: bash tests/run.sh fp64 test_half TEST=ends_early'

# The builds that make test makes, BUILDS_TESTED, are those that tests name.
sed -n '/^BUILDS_TESTED/,/[^\\]$/p' Makefile | grep -o '"[^"]*"' | awk '{
    gsub(/"/, "")
    sub(/PRECISION=/, "", $1)
    print $1 (/DEBUG=1/ ? "-debug" : "") (/SAN=/ ? "-san" : "") (/BUGS=1/ ? "-bugs" : "") (/BLAS=0/ ? "-noblas" : "")
}' | sort -u > "$work/out"
for source in tests/test_*.c; do sed -n '1s/.*builds: *//p' "$source"; done | tr -s ' */' '\n' | grep . | grep -vx bf16 | sort -u > "$work/named"
verdict "make test makes the builds that tests name" cmp "$work/named" "$work/out"
