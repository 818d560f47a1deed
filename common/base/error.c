#include "base/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank = -1; /* not known yet */
static void (*end_job)(int status);

void error_join_job(int rank_, void (*end_job_)(int status))
{
    rank = rank_;
    end_job = end_job_;
}

int process_rank(void)
{
    if (rank >= 0) return rank;
    const char *launcher = getenv("OMPI_COMM_WORLD_RANK");
    return launcher ? atoi(launcher) : 0;
}

/* Bytes of the UTF-8 character at `s`; 0 if it is a control character, or if the bytes are not UTF-8. */
static size_t printable(const unsigned char *s)
{
    if (s[0] < 0x80) return s[0] >= ' ' && s[0] != 0x7f;
    size_t bytes = s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < bytes; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool control = s[0] == 0xc2 && s[1] < 0xa0, too_long = s[0] == 0xe0 && s[1] < 0xa0,
         surrogate = s[0] == 0xed && s[1] > 0x9f;
    bool outside = (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return control || too_long || surrogate || outside ? 0 : bytes;
}

/* One line that any terminal can print, also where names and values hold other bytes. Of each string it has at most
 * VALUE_MAX bytes, so that what is said about it is still there; a byte that is no part of a printable character
 * becomes \xNN. */
static void format_line(char line[COMPLAINT_MAX], const char *format, va_list arguments)
{
    char bounded[1024], text[COMPLAINT_MAX / 4]; /* an escaped byte takes four */
    size_t n = 0;
    for (const char *f = format; *f && n + 16 < sizeof bounded; f++) {
        bounded[n++] = *f;
        if (*f != '%') continue;
        if (f[1] == 's') n += (size_t)snprintf(bounded + n, 16, ".%d", VALUE_MAX);
        bounded[n++] = *++f;
    }
    bounded[n] = '\0';
    vsnprintf(text, sizeof text, bounded, arguments);
    n = 0;
    for (const char *t = text; *t;) {
        size_t bytes = printable((const unsigned char *)t);
        n += (size_t)(bytes ? snprintf(line + n, 5, "%.*s", (int)bytes, t)
                            : snprintf(line + n, 5, "\\x%02x", (unsigned char)*t));
        t += bytes ? bytes : 1;
    }
    line[n] = '\0';
}

void fatal(const char *format, ...)
{
    char host[64] = "?", line[COMPLAINT_MAX];
    gethostname(host, sizeof host - 1);
    va_list arguments;
    va_start(arguments, format);
    format_line(line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "rank %d on %s: %s\n", process_rank(), host, line);
    if (end_job) end_job(1);
    exit(1);
}

const char *complain(const char *format, ...)
{
    static char line[COMPLAINT_MAX];
    va_list arguments;
    va_start(arguments, format);
    format_line(line, format, arguments); /* a copy is made first: an argument may be the last complaint */
    va_end(arguments);
    return line;
}
