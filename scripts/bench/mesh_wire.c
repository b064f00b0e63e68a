/* A switch of network namespaces with a rate and a delay, for kernels without netem.
 *
 *     mesh_wire DELAY_MS MBIT NAMESPACE...
 *
 * Each namespace gets a TAP "eth0" with the address 02:00:00:00:00:NN. A frame takes its time at the
 * rate of its sender's port and arrives a delay later. Lines on stdin: "cut N", "mute N" (what N
 * sends is lost, what it is sent is not), "slow N MBIT", "heal N". "ready" on stdout.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORTS = 16, FRAME = 65536, QUEUE = 8192 };

struct frame {
    double due;
    int target, length;
    unsigned char *bytes;
};

struct port {
    int tap, is_cut, is_mute;
    double free_at, bits_per_second;
    struct frame queue[QUEUE];
    int first, count;
};

static struct port ports[PORTS];
static int num_ports;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int open_tap(const char *name_space, int number) {
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", name_space);
    int there = open(path, O_RDONLY), tap;
    if (there < 0 || setns(there, CLONE_NEWNET)) fail(name_space);
    close(there);
    struct ifreq request = {0};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    strcpy(request.ifr_name, "eth0");
    tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (tap < 0 || ioctl(tap, TUNSETIFF, &request)) fail("/dev/net/tun");
    int control = socket(AF_INET, SOCK_DGRAM, 0);
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    unsigned char address[6] = {2, 0, 0, 0, 0, (unsigned char)number};
    memcpy(request.ifr_hwaddr.sa_data, address, 6);
    if (ioctl(control, SIOCSIFHWADDR, &request)) fail("SIOCSIFHWADDR");
    close(control);
    return tap;
}

static void send_later(struct port *from, int target, const unsigned char *bytes, int length,
                       double due) {
    if (from->count == QUEUE || target >= num_ports) return;
    struct frame *frame = &from->queue[(from->first + from->count++) % QUEUE];
    frame->due = due;
    frame->target = target;
    frame->length = length;
    frame->bytes = malloc((size_t)length);
    memcpy(frame->bytes, bytes, (size_t)length);
}

static void take(int number, double delay) {
    struct port *from = &ports[number];
    static unsigned char bytes[FRAME];
    for (;;) {
        int length = (int)read(from->tap, bytes, sizeof bytes);
        if (length < 14) return;
        if (from->is_cut || from->is_mute) continue;
        double time = now(), begins = from->free_at > time ? from->free_at : time;
        if (begins - time > 0.25) continue; /* a queue of a quarter of a second is full */
        from->free_at = begins + length * 8.0 / from->bits_per_second;
        double due = from->free_at + delay;
        if (bytes[0] & 1) {
            for (int other = 0; other < num_ports; other++)
                if (other != number) send_later(from, other, bytes, length, due);
        } else {
            send_later(from, bytes[5], bytes, length, due);
        }
    }
}

static double deliver(void) {
    double next = 1.0;
    for (int number = 0; number < num_ports; number++) {
        struct port *from = &ports[number];
        while (from->count) {
            struct frame *frame = &from->queue[from->first];
            double left = frame->due - now();
            if (left > 0) {
                next = left < next ? left : next;
                break;
            }
            if (!ports[frame->target].is_cut &&
                write(ports[frame->target].tap, frame->bytes, (size_t)frame->length) < 0) {
            }
            free(frame->bytes);
            from->first = (from->first + 1) % QUEUE;
            from->count--;
        }
    }
    return next;
}

static void obey(double usual) {
    char line[128], word[16];
    int number;
    double mbit;
    if (!fgets(line, sizeof line, stdin)) exit(0);
    int found = sscanf(line, "%15s %d %lf", word, &number, &mbit);
    if (found < 2 || number < 0 || number >= num_ports) return;
    struct port *port = &ports[number];
    if (!strcmp(word, "cut")) port->is_cut = 1;
    if (!strcmp(word, "mute")) port->is_mute = 1;
    if (!strcmp(word, "slow") && found == 3) port->bits_per_second = mbit * 1e6;
    if (!strcmp(word, "heal")) {
        port->is_cut = port->is_mute = 0;
        port->bits_per_second = usual;
    }
}

int main(int count, char **words) {
    if (count < 4 || count - 3 > PORTS) return 2;
    double delay = atof(words[1]) / 1e3, rate = atof(words[2]) * 1e6;
    for (int i = 3; i < count; i++) {
        ports[num_ports].tap = open_tap(words[i], num_ports);
        ports[num_ports++].bits_per_second = rate;
    }
    setvbuf(stdin, NULL, _IONBF, 0);
    puts("ready");
    fflush(stdout);
    struct pollfd polled[PORTS + 1];
    for (int i = 0; i < num_ports; i++) polled[i] = (struct pollfd){ports[i].tap, POLLIN, 0};
    polled[num_ports] = (struct pollfd){0, POLLIN, 0};
    for (;;) {
        double next = deliver();
        struct timespec wait = {(time_t)next, (long)((next - (double)(time_t)next) * 1e9)};
        if (ppoll(polled, (nfds_t)num_ports + 1, &wait, NULL) < 0) continue;
        for (int i = 0; i < num_ports; i++)
            if (polled[i].revents) take(i, delay);
        if (polled[num_ports].revents) obey(rate);
    }
}
