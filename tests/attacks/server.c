/*
 * Attempts of native code inside a project's server against the host, other projects and Gantry.
 *
 * tests/it/walls.rs compiles this as a shared library and loads it as a superuser with LOAD. The constructor runs before
 * PostgreSQL checks the library's magic block, so no header of PostgreSQL is needed. Each attempt writes a line
 * to `attack.out` in the data directory, the server's working directory: its name, `denied` or `DONE`, and errno.
 *
 * `attack.in` lists the targets, one word per line: a neighbour's socket, a file of a neighbour's, a file of
 * Gantry's, the path of a server's own socket folder, the loader, a library for the loader to run, and the pid of
 * Gantry.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <unistd.h>

/* Numbers that older C libraries do not define; they are the same on x86_64 and aarch64. */
#define NR_PIDFD_OPEN 434
#define NR_CLONE3 435
#define NR_PIDFD_GETFD 438
#define NR_IO_URING_SETUP 425
#define PROTOCOL_MPTCP 262
#ifndef MSG_FASTOPEN
#define MSG_FASTOPEN 0x20000000
#endif

static FILE *out;

/* A call that returns -1 was denied. */
static void say(const char *name, long answer)
{
    int error = errno;
    fprintf(out, "%s %s %d\n", name, answer == -1 ? "denied" : "DONE", answer == -1 ? error : 0);
    fflush(out);
    errno = 0;
}

static void make_socket(const char *name, int domain, int type, int protocol)
{
    int fd = socket(domain, type, protocol);
    say(name, fd);
    if (fd >= 0)
        close(fd);
}

static void address_of(struct sockaddr_un *address, const char *path)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    strncpy(address->sun_path, path, sizeof address->sun_path - 1);
}

static void sockets(const char *neighbour)
{
    struct sockaddr_in way = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un address;
    int fd, pair[2];

    make_socket("socket-tcp", AF_INET, SOCK_STREAM, 0);
    make_socket("socket-tcp6", AF_INET6, SOCK_STREAM, 0);
    make_socket("socket-udp", AF_INET, SOCK_DGRAM, 0);
    make_socket("socket-mptcp", AF_INET, SOCK_STREAM, PROTOCOL_MPTCP);
    make_socket("socket-raw", AF_INET, SOCK_RAW, IPPROTO_ICMP);
    make_socket("socket-ping", AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
    make_socket("socket-netlink", AF_NETLINK, SOCK_RAW, 0);
    make_socket("socket-packet", AF_PACKET, SOCK_RAW, 0);
    make_socket("socket-vsock", AF_VSOCK, SOCK_STREAM, 0);
    make_socket("socket-alg", AF_ALG, SOCK_SEQPACKET, 0);
    make_socket("socket-unix-datagram", AF_UNIX, SOCK_DGRAM, 0);
    say("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));

    fd = socket(AF_INET, SOCK_STREAM, 0);
    say("tcp-fast-open", sendto(fd, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&way, sizeof way));

    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0) {
        say("unix-socket-for-what-follows", -1);
        return;
    }
    address_of(&address, neighbour);
    say("connect-neighbour", connect(fd, (struct sockaddr *)&address, sizeof address));
    address.sun_path[0] = 0;
    memcpy(address.sun_path + 1, "gantry-attack", 13);
    say("connect-abstract", connect(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 14));
    address_of(&address, "/run/dbus/system_bus_socket");
    say("connect-host", connect(fd, (struct sockaddr *)&address, sizeof address));
    say("sendto-host", sendto(fd, "x", 1, 0, (struct sockaddr *)&address, sizeof address));
    struct msghdr message = {0};
    say("sendmsg", sendmsg(fd, &message, 0));
    say("recvmsg", recvmsg(fd, &message, MSG_DONTWAIT));
    address_of(&address, "attack.socket");
    say("bind-in-data", bind(fd, (struct sockaddr *)&address, sizeof address));
    close(fd);
}

static int child_of_clone(void *unused)
{
    (void)unused;
    _exit(0);
}

static void kernel(void)
{
    static char stack[65536];
    struct clone_args arguments;
    uint64_t zeros[16] = {0};

    say("unshare-user", unshare(CLONE_NEWUSER));
    say("unshare-net", unshare(CLONE_NEWNET));
    say("clone-user", clone(child_of_clone, stack + sizeof stack, CLONE_NEWUSER | SIGCHLD, NULL));
    say("clone-parent", clone(child_of_clone, stack + sizeof stack, CLONE_PARENT | SIGCHLD, NULL));
    memset(&arguments, 0, sizeof arguments);
    arguments.flags = CLONE_NEWUSER;
    arguments.exit_signal = SIGCHLD;
    long pid = syscall(NR_CLONE3, &arguments, sizeof arguments);
    if (pid == 0)
        _exit(0);
    say("clone3-user", pid);
    say("setns", setns(0, 0));
    say("io-uring", syscall(NR_IO_URING_SETUP, 1, zeros));
    say("userfaultfd", syscall(SYS_userfaultfd, 0));
    say("userfaultfd-user-mode", syscall(SYS_userfaultfd, 1));
    say("bpf", syscall(SYS_bpf, 0, zeros, sizeof zeros));
    say("perf-event-open", syscall(SYS_perf_event_open, zeros, 0, -1, -1, 0));
    say("keyctl", syscall(SYS_keyctl, 0, -3, 1));
    say("add-key", syscall(SYS_add_key, "user", "attack", "x", 1, -3));
    say("request-key", syscall(SYS_request_key, "user", "attack", NULL, -3));
    say("mount", syscall(SYS_mount, "none", "/", "tmpfs", 0, NULL));
    say("chroot", chroot("/"));
    say("personality", syscall(SYS_personality, 0));
    say("name-to-handle", syscall(SYS_name_to_handle_at, AT_FDCWD, ".", zeros, zeros, 0));
    say("vmsplice", syscall(SYS_vmsplice, 1, NULL, 0, 0));
    say("mbind", syscall(SYS_mbind, 0, 0, 0, NULL, 0, 0));
    say("init-module", syscall(SYS_init_module, NULL, 0, ""));
    say("kexec", syscall(SYS_kexec_load, 0, 0, NULL, 0));
    /* The kernel reserves nothing for it, so only the list of system calls can limit its size. */
    say("shmget-8-gib", shmget(IPC_PRIVATE, (size_t)8 << 30, IPC_CREAT | 0600));
    say("shmget-two-pages", shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600));
    say("shmget-beyond-32-bits", shmget(IPC_PRIVATE, ((size_t)1 << 32) + 1, IPC_CREAT | 0600));
    say("semget", semget(IPC_PRIVATE, 1, IPC_CREAT | 0600));
    say("msgget", syscall(SYS_msgget, 0, 0600 | 01000));
    say("mq-open", syscall(SYS_mq_open, "attack", O_CREAT | O_RDWR, 0600, NULL));
    say("inotify", syscall(SYS_inotify_init1, 0));
    say("fanotify", syscall(SYS_fanotify_init, 0, 0));
    say("setuid", setuid(0));
    say("tiocsti", syscall(SYS_ioctl, 0, 0x5412, "x"));
#ifdef __x86_64__
    say("x32-getpid", syscall(0x40000000 | SYS_getpid));
#endif
}

static void limits(void)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};

    say("setrlimit", setrlimit(RLIMIT_CORE, &limit));
    say("prlimit-of-another", syscall(SYS_prlimit64, getppid(), RLIMIT_NOFILE, NULL, &limit));
    say("prctl-dumpable", prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
    say("prctl-ptracer", prctl(PR_SET_PTRACER, -1, 0, 0, 0));
    say("prctl-seccomp", prctl(PR_SET_SECCOMP, 2, NULL, 0, 0));
    say("prctl-subreaper", prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    say("seccomp", syscall(SYS_seccomp, 1, 0, NULL));
    say("sched-setaffinity", syscall(SYS_sched_setaffinity, 0, 0, NULL));
    say("setpriority", setpriority(PRIO_PROCESS, 0, -20));
}

static void programs(const char *loader, const char *library)
{
    char *arguments[] = {(char *)loader, (char *)library, NULL}, *environment[] = {NULL};

    /* In a child, because a successful attempt does not return. */
#define ATTEMPT(name, call)                                   \
    do {                                                      \
        int status = 0;                                       \
        pid_t child = fork();                                 \
        if (child == 0) {                                     \
            call;                                             \
            _exit(errno < 100 ? 100 + errno : 250);           \
        }                                                     \
        waitpid(child, &status, 0);                           \
        errno = WIFEXITED(status) ? WEXITSTATUS(status) - 100 : 0; \
        say(name, errno == EPERM || errno == EACCES || errno == ENOSYS ? -1 : 0); \
    } while (0)

    ATTEMPT("execve-shell", execve("/bin/sh", arguments, environment));
    ATTEMPT("execve-loader", execve(loader, arguments, environment));
    ATTEMPT("execve-postgres", execve("/proc/self/exe", arguments, environment));
    int fd = open(loader, O_RDONLY);
    ATTEMPT("execveat-loader", syscall(SYS_execveat, fd, "", arguments, environment, AT_EMPTY_PATH));
    ATTEMPT("execveat-path", syscall(SYS_execveat, AT_FDCWD, loader, arguments, environment, 0));
    fd = syscall(SYS_memfd_create, "attack", 0);
    say("memfd-create", fd);
    ATTEMPT("exec-memfd", syscall(SYS_execveat, fd, "", arguments, environment, AT_EMPTY_PATH));
}

static void open_file(const char *name, const char *path, int flags)
{
    int fd = open(path, flags);
    say(name, fd);
    if (fd >= 0)
        close(fd);
}

static void files(const char *folder, const char *foreign, const char *own)
{
    char path[600];

    say("symlink-in-data", symlink(foreign, "attack.link"));
    snprintf(path, sizeof path, "%s/attack.link", folder);
    say("symlink-in-run", symlink(foreign, path));
    snprintf(path, sizeof path, "%s/attack.dir", folder);
    say("mkdir-in-run", mkdir(path, 0700));
    say("mkfifo", mkfifo("attack.fifo", 0600));
    say("mknod-device", mknod("attack.device", S_IFCHR | 0600, (1 << 8) | 3));
    say("mknod-socket", mknod("attack.node", S_IFSOCK | 0600, 0));
    say("link-foreign", link(foreign, "attack.foreign"));
    snprintf(path, sizeof path, "%s/attack.moved", folder);
    say("link-across", link("PG_VERSION", path));
    say("rename-across", rename("attack.in", path));
    open_file("open-neighbour", foreign, O_RDONLY);
    open_file("write-neighbour", foreign, O_WRONLY);
    open_file("open-gantry", own, O_RDONLY);
    open_file("open-start-log", "../start.log", O_RDONLY);
    open_file("write-launched", "../launched", O_WRONLY);
    open_file("create-beside-data", "../attack", O_WRONLY | O_CREAT);
    open_file("open-shadow", "/etc/shadow", O_RDONLY);
    open_file("open-tmp", "/tmp/attack", O_WRONLY | O_CREAT);
    open_file("open-shm", "/dev/shm/attack", O_WRONLY | O_CREAT);
    open_file("open-kmsg", "/dev/kmsg", O_RDONLY);
    open_file("open-init-environ", "/proc/1/environ", O_RDONLY);
    open_file("open-init-root", "/proc/1/root/etc/passwd", O_RDONLY);
    open_file("open-own-mem", "/proc/self/mem", O_RDWR);
}

static void processes(pid_t gantry)
{
    say("kill-gantry", kill(gantry, 0));
    say("kill-init", kill(1, 0));
    say("ptrace-parent", ptrace(PTRACE_ATTACH, getppid(), NULL, NULL));
    say("ptrace-gantry", ptrace(PTRACE_ATTACH, gantry, NULL, NULL));
    say("process-vm-readv", syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0));
    say("pidfd-open", syscall(NR_PIDFD_OPEN, gantry, 0));
    say("pidfd-getfd", syscall(NR_PIDFD_GETFD, 0, 0, 0));
}

/* Starts a listener at the server's socket, with a process title like the postmaster's. */
static void listen_instead(const char *folder)
{
    char path[600];
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    FILE *told = fopen("attack.told", "w");
    snprintf(path, sizeof path, "%s/.s.PGSQL.5432", folder);
    unlink(path);
    address_of(&address, path);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 8) != 0) {
        say("listen-instead", -1);
        return;
    }
    say("listen-instead", 0);
    if (fork() != 0)
        return;
    /* The title of a postmaster, in the memory that the kernel reads titles from. */
    strcpy(program_invocation_name, "postgres");
    /* The child accepts connections and stores the received bytes. */
    for (;;) {
        char bytes[512];
        int client = accept(fd, NULL, NULL);
        if (client < 0)
            _exit(0);
        long length = read(client, bytes, sizeof bytes);
        fprintf(told, "%ld\n", length);
        fflush(told);
        close(client);
    }
}

/* Writes the name of the machine, which is no secret of another project but one of the host. */
static void names(void)
{
    char name[256] = "", line[300];

    gethostname(name, sizeof name - 1);
    snprintf(line, sizeof line, "host-name-is-%s", name);
    say(line, 0);
}

__attribute__((constructor)) static void attack(void)
{
    static char words[8][512];
    FILE *in = fopen("attack.in", "r");
    int count = 0;

    if (in == NULL)
        return;
    while (count < 8 && fgets(words[count], sizeof words[0], in) != NULL) {
        words[count][strcspn(words[count], "\n")] = 0;
        count++;
    }
    fclose(in);
    out = fopen("attack.out", "w");
    if (out == NULL || count == 0)
        return;
    if (strcmp(words[0], "listen") == 0 && count == 2) {
        listen_instead(words[1]);
    } else if (strcmp(words[0], "names") == 0 && count == 1) {
        names();
    } else if (count == 7) {
        sockets(words[0]);
        files(words[3], words[1], words[2]);
        processes(atoi(words[6]));
        limits();
        programs(words[4], words[5]);
        kernel();
    }
    fprintf(out, "end\n");
    fclose(out);
}
