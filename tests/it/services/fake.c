/* A service for tests: answers HTTP on a Unix socket, one process per connection.
   With one of the variables GOTRUE_API_PORT, SERVER_PORT and PORT it listens on that port of 127.0.0.1, unless GOTRUE_SITE_URL is
   one that it rejects. Named "migrate", it ends with success if the database can be reached. Paths below /api are those without it,
   and /tenant returns the last request about tenants.
   Arguments: the socket, then a mode: ok, die (ends at once), never (does not listen), slow (listens when the file of the third
   argument exists). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

/* The last request about tenants, shared by the processes of all connections. */
static char *tenant;
static pid_t server;
static volatile sig_atomic_t hungry;

static void on_signal(int number) { hungry = number; }

/* Uses memory until there is none. */
static void hog(void) {
    for (;;) {
        char *more = malloc(1 << 20);
        if (!more) break;
        memset(more, 1, 1 << 20);
    }
    printf("no memory left\n");
    fflush(stdout);
    exit(5);
}

/* Returns how many processes can be made. */
static int forks(void) {
    pid_t made[1000];
    int count = 0;
    while (count < 1000 && (made[count] = fork()) > 0) count++;
    if (count < 1000 && made[count] == 0)
        for (;;) pause();
    for (int each = 0; each < count; each++) kill(made[each], SIGKILL);
    return count;
}

/* Connects to a port of 127.0.0.1. */
static int reach(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    /* A request for TLS is answered by one byte. */
    char request[8] = {0, 0, 0, 8, 4, 210, 22, 47}, answer;
    if (fd < 0 || connect(fd, (void *)&address, sizeof address)) return errno;
    return write(fd, request, 8) == 8 && read(fd, &answer, 1) == 1 ? 0 : ECONNRESET;
}

static int port_socket(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return bind(fd, (void *)&address, sizeof address) || listen(fd, 64) ? -1 : fd;
}

static int unix_socket(const char *path, int listening) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    int result = listening ? bind(fd, (void *)&address, sizeof address) || listen(fd, 64)
                           : connect(fd, (void *)&address, sizeof address);
    return result ? -1 : fd;
}

/* Carries out an attempt and returns 0 or the error number. */
static int attempt(const char *what, char *argument) {
    errno = 0;
    if (!strcmp(what, "read")) return open(argument, O_RDONLY) < 0 ? errno : 0;
    if (!strcmp(what, "write")) return open(argument, O_WRONLY | O_CREAT, 0600) < 0 ? errno : 0;
    if (!strcmp(what, "connect")) return unix_socket(argument, 0) < 0 ? errno : 0;
    if (!strcmp(what, "kill")) return kill(atoi(argument), 0) ? errno : 0;
    if (!strcmp(what, "execute")) {
        char *arguments[] = {argument, NULL};
        execv(argument, arguments);
        return errno;
    }
    if (!strcmp(what, "attribute")) return setxattr(argument, "user.type", "x", 1, 0) ? errno : 0;
    if (!strcmp(what, "reach")) return reach(argument);
    if (!strcmp(what, "forks")) return forks();
    if (!strcmp(what, "port")) return port_socket(argument) < 0 ? errno : 0;
    if (!strcmp(what, "inet")) return socket(AF_INET, SOCK_STREAM, 0) < 0 ? errno : 0;
    if (!strcmp(what, "udp")) return socket(AF_INET, SOCK_DGRAM, 0) < 0 ? errno : 0;
    return -1;
}

enum { TENANT_BYTES = 1 << 16 };

static void serve(int client) {
    static char request[TENANT_BYTES];
    size_t held = 0;
    for (;;) {
        ssize_t got = read(client, request + held, sizeof request - 1 - held);
        if (got <= 0) exit(0);
        held += got;
        request[held] = 0;
        char *end = strstr(request, "\r\n\r\n"), *length = strcasestr(request, "content-length: ");
        if (!end) continue;
        if (length && length < end && held < (size_t)(end + 4 - request) + atoi(length + 16)) continue;
        char method[16], path[2048];
        static char body[1 << 18];
        sscanf(request, "%15s %2047s", method, path);
        held = 0;
        if (!strncmp(path, "/api/tenants/", 13)) memcpy(tenant, request, sizeof request);
        else if (!strncmp(path, "/api/", 5)) memmove(path, path + 4, strlen(path + 4) + 1);
        if (!strcmp(path, "/crash")) kill(server, SIGKILL);
        if (!strcmp(path, "/hog")) kill(server, SIGUSR1);
        if (!strncmp(path, "/try/", 5)) {
            char *argument = strchr(path + 5, '?');
            if (argument) *argument++ = 0;
            snprintf(body, sizeof body, "%d", attempt(path + 5, argument));
        } else if (!strcmp(path, "/environment")) {
            extern char **environ;
            size_t end = 0;
            body[0] = 0;
            for (char **each = environ; *each && end < sizeof body; each++)
                end += snprintf(body + end, sizeof body - end, "%s\n", *each);
        } else if (!strcmp(path, "/host-name")) {
            body[0] = 0;
            gethostname(body, sizeof body - 1);
        } else if (!strcmp(path, "/tenant")) {
            snprintf(body, sizeof body, "%s", tenant);
        } else if (!strcmp(path, "/variables")) {
            extern char **environ;
            int count = 0;
            while (environ[count]) count++;
            snprintf(body, sizeof body, "%d %s", count, getenv("TZ"));
        } else {
            snprintf(body, sizeof body, "%d %d %d", server, getuid(), getgid());
        }
        dprintf(client, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
                strcmp(method, "HEAD") ? body : "");
    }
}

int main(int count, char **arguments) {
    const char *mode = count > 2 ? arguments[2] : "ok";
    const char *name = strrchr(arguments[0], '/'), *database = getenv("DB_PORT");
    if (name && !strcmp(name, "/migrate")) return database ? reach(database) : 9;
    tenant = mmap(NULL, TENANT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    server = getpid();
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    printf("mode %s\n", mode);
    fflush(stdout);
    if (!strcmp(mode, "die")) return 3;
    while (!strcmp(mode, "never")) pause();
    struct stat found;
    while (!strcmp(mode, "slow") && stat(arguments[3], &found)) usleep(1000);
    const char *port = getenv("GOTRUE_API_PORT"), *site = getenv("GOTRUE_SITE_URL");
    if (!port) port = getenv("SERVER_PORT");
    if (!port) port = getenv("PORT");
    if (site && strstr(site, "rejected")) {
        printf("GOTRUE_SITE_URL is rejected\n");
        return 6;
    }
    int listener = port ? port_socket(port) : unix_socket(arguments[1], 1);
    if (listener < 0) return 4;
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (hungry) hog();
        if (client < 0) continue;
        if (!fork()) serve(client);
        close(client);
    }
}
