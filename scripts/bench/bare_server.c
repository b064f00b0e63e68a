/* The least that a streamed token costs at all: bare_server.py's two system calls, without Python.

   A thread sleeps until each 20 ms are over and sends a server's frame to each socket. Built and run
   by http_cost.py; the frame is the first argument. */

#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SOCKETS = 1024, STEP_NANOSECONDS = 20000000, SECOND = 1000000000 };

static const char HEAD[] = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
static const char *frame;
static size_t frame_bytes;
static int sockets[MOST_SOCKETS];
static int num_sockets;
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

static void *write_for_ever(void *unused) {
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (;;) {
        next.tv_nsec += STEP_NANOSECONDS;
        if (next.tv_nsec >= SECOND) {
            next.tv_nsec -= SECOND;
            next.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
        pthread_mutex_lock(&changing);
        for (int each = 0; each < num_sockets; each++) {
            if (send(sockets[each], frame, frame_bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
                close(sockets[each]);
                sockets[each--] = sockets[--num_sockets];
            }
        }
        pthread_mutex_unlock(&changing);
    }
    return unused;
}

int main(int count, char **words) {
    static char request[65536];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    pthread_t writer;
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (count != 2 || bind(listener, (struct sockaddr *)&address, length) ||
        listen(listener, 512) || getsockname(listener, (struct sockaddr *)&address, &length))
        return 1;
    frame = words[1];
    frame_bytes = strlen(frame);
    fprintf(stderr, "{\"message\": \"ready\", \"port\": %d}\n", ntohs(address.sin_port));
    pthread_create(&writer, NULL, write_for_ever, NULL);
    for (;;) {
        int taken = accept(listener, NULL, NULL);
        if (taken < 0 || recv(taken, request, sizeof request, 0) <= 0) continue;
        setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (send(taken, HEAD, sizeof HEAD - 1, MSG_NOSIGNAL) < 0) continue;
        pthread_mutex_lock(&changing);
        if (num_sockets < MOST_SOCKETS) sockets[num_sockets++] = taken;
        pthread_mutex_unlock(&changing);
    }
}
