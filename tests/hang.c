/* A program that goes wrong on purpose, so that tests/cli.sh can look at what is said about it.
 *
 *   hang missing     rank 1 never joins a collective that the others wait in
 *   hang loop        rank 1 computes for ever, and the others wait for it
 *   hang mismatch    rank 1 calls the same collective with another count (debug builds say so)
 *   hang kinds       rank 1 calls another collective
 *   hang crash       rank 1 dies
 *   hang leaves      rank 1 never comes to the end of MPI, where the others wait for it
 *   hang busy        everyone computes for a while, showing signs of life: nothing is wrong
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/recorder.h"

int main(int argc, char **argv)
{
    comm_init(&argc, &argv);
    const char *how = argc > 1 ? argv[1] : "";
    bool leaves = strcmp(how, "leaves") == 0;
    if (!leaves) watchdog_start(2);
    Group *world = comm_world();
    bool odd_one = group_rank(world) == 1;
    double x[8] = {0};
    comm_all_reduce(world, x, 4, COMM_DOUBLE, COMM_SUM);

    if (strcmp(how, "missing") == 0 && odd_one) {
        pause();
    } else if (strcmp(how, "loop") == 0 && odd_one) {
        for (;;) comm_progress();
    } else if (strcmp(how, "mismatch") == 0) {
        comm_all_reduce(world, x, odd_one ? 5 : 4, COMM_DOUBLE, COMM_SUM);
    } else if (strcmp(how, "kinds") == 0 && odd_one) {
        comm_broadcast(world, x, 8, COMM_DOUBLE, 0);
    } else if (strcmp(how, "crash") == 0 && odd_one) {
        raise(SIGKILL);
    } else if (strcmp(how, "busy") == 0) {
        for (int i = 0; i < 40; i++) {
            usleep(100000);
            comm_progress();
        }
    }
    comm_all_reduce(world, x, 8, COMM_DOUBLE, COMM_MAX);
    if (leaves && odd_one) pause();
    if (leaves) watchdog_start(0.1); /* there it is patient: 60 times that */
    comm_finalize();
    return 0;
}
