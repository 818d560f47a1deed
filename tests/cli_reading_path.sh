# The reading path in common/README.md: each file is there, and its number of lines is true to 10 %. Sourced by run.sh.

# lines_agree README: each `FILE` LINES of its tables, FILE from the README's folder.
lines_agree() {
    local folder file lines counted good=0
    folder=$(dirname "$1")
    grep -oE '`[^` ]+\.[a-z]+` [0-9]+' "$1" | tr -d '`' > "$work/path"
    : > "$work/err"
    while read -r file lines; do
        if [ ! -f "$folder/$file" ]; then
            echo "$1 names $file, which is not there" >> "$work/err"
            good=1
            continue
        fi
        counted=$(wc -l < "$folder/$file")
        [ $((10 * (counted > lines ? counted - lines : lines - counted))) -le "$counted" ] && continue
        echo "$1 gives $file $lines lines; it has $counted" >> "$work/err"
        good=1
    done < "$work/path"
    return $good
}

status=0
: > "$work/out"
verdict "the reading path's files and their lines" lines_agree common/README.md
verdict "which are 26" [ "$(wc -l < "$work/path")" = 26 ]
mkdir -p "$work/readme"
printf '| the loop | `main.c` 20 |\n' > "$work/readme/README.md"
missing() { ! lines_agree "$work/readme/README.md"; }
verdict "a file that is not there is noticed" missing
seq 23 > "$work/readme/main.c"
verdict "a wrong number of lines is noticed" missing
seq 22 > "$work/readme/main.c"
verdict "a small change is not" lines_agree "$work/readme/README.md"
