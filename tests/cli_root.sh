# What comes out otherwise for root than for an ordinary user. Sourced by run.sh; .ci/run runs it as both.

echo precious > "$work/keep"
# No user can make a file in /proc. For root access(2) allows it, so that the run learns it when it makes its files; other
# users are refused before.
why="Permission denied"
[ "$(id -u)" != 0 ] || why="No such file"
run 2 $ddp $nano --log "$work/keep" --trace /proc/none
verdict "a run is refused whose second output cannot be made" said 2 "^--trace /proc/none: $why"
verdict "which leaves the log alone" [ "$(cat "$work/keep")" = precious ]
run 2 $ddp $nano --log "$work/unborn" --trace /proc/none
verdict "and makes none" [ $status = 2 -a ! -e "$work/unborn" ]

mkdir "$work/closed"
echo precious > "$work/closed/log"
chmod a-w "$work/closed" "$work/closed/log"
for output in "log" "new"; do
    run 2 $ddp $nano --log "$work/closed/$output"
    if [ "$(id -u)" = 0 ]; then
        verdict "root writes $output where others may not" [ $status = 0 -a "$(grep -c '"step":[123],"loss"' "$work/closed/$output")" = 3 ]
    else
        verdict "a --log in a closed folder is refused: $output" said 2 "^--log $work/closed/$output: Permission denied"
    fi
done
[ "$(id -u)" = 0 ] || verdict "and nothing there has changed" [ "$(cat "$work/closed/"*)" = precious ]
chmod u+w "$work/closed"

# Data that may not be read. Root reads everything.
cp LICENSE "$work/secret"
chmod a-r "$work/secret"
run 2 $ddp --model nano --steps 1 --data "$work/secret"
if [ "$(id -u)" = 0 ]; then
    verdict "root reads what others may not" [ $status = 0 ]
else
    verdict "data that may not be read is refused" said 2 "^--data $work/secret: Permission denied"
fi

# make deps where every package is missing. The stand-ins only say what they were asked.
mkdir "$work/stand-ins"
for stand_in in apt-get sudo; do printf '#!/bin/sh\necho %s "$@"\n' $stand_in > "$work/stand-ins/$stand_in"; done
printf '#!/bin/sh\nexit 1\n' > "$work/stand-ins/dpkg-query"
chmod a+x "$work/stand-ins/"*
for tool in sh id env; do ln -s "$(command -v $tool)" "$work/stand-ins"; done
deps() {
    PATH=$work/stand-ins sh common/tools/deps.sh > "$work/out" 2> "$work/err"
    status=$?
}
deps
if [ "$(id -u)" = 0 ]; then
    verdict "make deps installs as root" grep -qx 'apt-get update -q' "$work/out"
else
    verdict "make deps installs with sudo" grep -qx 'sudo apt-get update -q' "$work/out"
    rm "$work/stand-ins/sudo"
    deps
    verdict "without sudo it says what to install, and fails" [ $status = 1 -a "$(grep -c 'apt-get install .*make' "$work/out")" = 1 ]
fi
