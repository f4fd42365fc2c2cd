#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""64 bytes there and back through iceoryx2 (publish-subscribe, both sides polling), from Python.

Usage: iceoryx2_rtt.py CPU CPU. The time holds what the interpreter takes for it: the row says so, and how
long an empty poll takes here, of which each way needs one at least.
"""
import ctypes
import os
import signal
import sys
import time

try:
    import iceoryx2 as iox2
except ImportError:
    print("%-34s not measured: no Python package iceoryx2" % "iceoryx2")
    sys.exit(0)

TRIPS, WARM = 5000, 500


class Message(ctypes.Structure):
    _fields_ = [("word", ctypes.c_uint64 * 8)]

    @staticmethod
    def type_name():
        return "Message"


def ends(node, prefix, out, back):
    def service(name):
        return node.service_builder(iox2.ServiceName.new(prefix + name)).publish_subscribe(Message).open_or_create()
    return service(out).publisher_builder().create(), service(back).subscriber_builder().create()


def put(publisher, number):
    message = Message()
    message.word[0] = number
    publisher.send_copy(message)


def take(subscriber):
    while True:
        sample = subscriber.receive()
        if sample is not None:
            return sample.payload().contents.word[0]


def fifo(cpu):
    os.sched_setaffinity(0, {cpu})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except OSError:
        pass


def main():
    daemon_cpu, client_cpu = int(sys.argv[1]), int(sys.argv[2])
    prefix = "tokenring-bench-%d-" % os.getpid()
    signal.alarm(30)
    parent = os.getpid()
    child = os.fork()
    fifo(client_cpu if child else daemon_cpu)
    iox2.set_log_level(iox2.LogLevel.Error)
    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
    publisher, subscriber = ends(node, prefix, *(("a", "b") if child else ("b", "a")))
    if not child:
        while os.getppid() == parent:
            put(publisher, take(subscriber))
        os._exit(0)
    time.sleep(0.5)  # both have all four ends: a message sent before is lost
    times = []
    for i in range(WARM + TRIPS):
        begin = time.perf_counter_ns()
        put(publisher, i)
        take(subscriber)
        times.append(time.perf_counter_ns() - begin)
    begin = time.perf_counter_ns()
    for _ in range(TRIPS):
        subscriber.receive()
    empty = (time.perf_counter_ns() - begin) / TRIPS
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    times = sorted(times[WARM:])
    print("%-34s %9d %9d %9d  from Python: an empty poll takes %d ns"
          % ("iceoryx2", times[TRIPS // 2], times[TRIPS * 99 // 100], times[TRIPS * 999 // 1000], empty))


if __name__ == "__main__":
    main()
