// The loop of a thread that moves the bytes of many connections.
#ifndef MILLRACE_SERVER_GUARD_WORKER_LOOP_H_
#define MILLRACE_SERVER_GUARD_WORKER_LOOP_H_

#include <boost/asio/io_context.hpp>

namespace millrace {

// Runs handlers until the context has no work left or is stopped.
//
// A server that streams to thousands of clients writes each token by itself, and a thread that is
// woken for each spends most of its time on waking up. So a thread that was woken kBusyWakes times
// within kBusyTime looks away for kPause: what comes meanwhile it finds at once, of one connection
// as one read and one write. A thread with little to do is woken for each byte as ever.
void RunInBatches(boost::asio::io_context& context);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_WORKER_LOOP_H_
