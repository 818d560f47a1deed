#include "capture.h"

#include <stdio.h>
#include <unistd.h>

#include "base/error.h"

static FILE *file;
static int terminal;

void capture_begin(void)
{
    file = tmpfile();
    CHECK(file);
    fflush(stdout);
    terminal = dup(STDOUT_FILENO);
    CHECK(terminal >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
}

void capture_end(char *text, size_t size)
{
    fflush(stdout);
    CHECK(dup2(terminal, STDOUT_FILENO) >= 0);
    close(terminal);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}
