/* One clock for everything that measures time. */
#pragma once

/* Seconds since some fixed moment; never goes back. */
double clock_seconds(void);
