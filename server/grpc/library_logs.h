// Makes lines of the log of what gRPC and protobuf have to say, which they write to stderr
// otherwise.
#ifndef MILLRACE_SERVER_GRPC_LIBRARY_LOGS_H_
#define MILLRACE_SERVER_GRPC_LIBRARY_LOGS_H_

namespace millrace {

// Sends the libraries' messages to the log of the component grpc from now on: of protobuf at debug,
// since any client can cause them by a broken message, and gRPC's errors as warnings. Call before
// gRPC's server starts; again is harmless.
void LogWhatLibrariesSay();

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_LIBRARY_LOGS_H_
