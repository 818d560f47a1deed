/* The clock for all measurements of time. */
#pragma once

/* Seconds since some fixed moment. The clock never goes back. */
double clock_seconds(void);
