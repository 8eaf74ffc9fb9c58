// A transport with a real socket; OpenSSL is the client.
#include "server/tls/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <prometheus/registry.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/tls/certificates_test_util.h"
#include "server/tls/client_test_util.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kGuard(20);

// Reads to the end of the stream, and writes what it read, as the owners of transports do.
class Echo : public std::enable_shared_from_this<Echo> {
 public:
  Echo(net::ip::tcp::socket socket, const TransportRules& rules)
      : transport(std::move(socket), rules, TlsProtocol::kHttp2) {}

  void Start() {
    transport.Start();
    Read();
  }

  Transport transport;
  std::string received;
  size_t to_echo = 0;  // from this many bytes on
  bool echo = true;
  error_code end;
  int waits = 0;

 private:
  void Read() {
    while (true) {
      error_code error;
      const size_t read = transport.read_some(net::buffer(buffer_), error);
      received.append(buffer_.data(), read);
      out_.append(buffer_.data(), read);
      if (error && error != net::error::would_block) {
        end = error;
        return transport.close(error);
      }
      if (echo && received.size() >= to_echo && !writing_) Write();
      if (read == buffer_.size()) continue;
      ++waits;
      return transport.async_wait(Transport::wait_read,
                                  [self = shared_from_this()](const error_code& failed) {
                                    if (!failed) self->Read();
                                  });
    }
  }

  void Write() {
    while (!out_.empty()) {
      error_code error;
      out_.erase(0, transport.write_some(net::buffer(out_), error));
      if (error == net::error::would_block) {
        writing_ = true;
        return transport.async_wait(Transport::wait_write,
                                    [self = shared_from_this()](const error_code& failed) {
                                      self->writing_ = false;
                                      if (!failed) self->Write();
                                    });
      }
      if (error) return;
    }
  }

  std::vector<char> buffer_ = std::vector<char>(1000);  // less than a record
  std::string out_;
  bool writing_ = false;
};

class TransportTest : public testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);  // of OpenSSL's client
    Begin({});
  }

  void Begin(TlsFiles more) {
    more.certificate = testing::TempDir() + "transport.pem";
    WriteTestFile(more.certificate, server_.certificate_pem() + server_.key_pem());
    auto tls = TlsServer::Open(more, 2, registry_);
    ASSERT_TRUE(tls.ok()) << tls.status();
    tls_ = *std::move(tls);
  }
  TlsFiles AskForCertificates(ClientCertificates clients) const {
    const std::string path = testing::TempDir() + "authorities.pem";
    WriteTestFile(path, authority_.certificate_pem());
    return {.authorities = path, .clients = clients};
  }

  // Runs `client` against an Echo until both have ended.
  std::shared_ptr<Echo> Run(
      const std::function<void(TestClient&)>& client, bool with_tls = true,
      const std::function<void(Echo&)>& prepare = [](Echo&) {}) {
    net::io_context context;
    net::ip::tcp::acceptor acceptor(context, {net::ip::address_v4::loopback(), 0});
    const int port = acceptor.local_endpoint().port();
    auto done = std::async(std::launch::async, [&] {
      TestClient one(port);
      client(one);
    });
    rules_ = {.tls = with_tls ? tls_.get() : nullptr, .proxies = proxies_};
    auto echo = std::make_shared<Echo>(acceptor.accept(), rules_);
    prepare(*echo);
    echo->Start();
    context.run_for(kGuard);
    EXPECT_TRUE(context.stopped()) << "a handler still waits";
    done.get();
    return echo;
  }

  const TestCertificate server_ = MakeTestCertificate({.name = "server"});
  const TestCertificate authority_ = MakeTestCertificate({.name = "authority"});
  std::vector<AddressRange> proxies_;
  prometheus::Registry registry_;
  std::unique_ptr<TlsServer> tls_;
  TransportRules rules_;  // outlives the Echo that Run returns
};

TEST_F(TransportTest, CarriesBytesBothWays) {
  // More than a record, so that reads end inside one, and more than the socket takes.
  std::string text;
  for (int i = 0; text.size() < (8 << 20); ++i) text += std::to_string(i);
  const auto echo = Run(
      [&](TestClient& client) {
        ASSERT_EQ(client.Handshake(), "");
        EXPECT_EQ(client.NameOfServer(), "CN=server");
        EXPECT_STREQ(SSL_get_version(client.ssl()), "TLSv1.3");
        client.Send(text);
        EXPECT_TRUE(client.Read(text.size()) == text);
        SSL_shutdown(client.ssl());
      },
      true, [&](Echo& one) { one.to_echo = text.size(); });
  EXPECT_TRUE(echo->received == text);
  EXPECT_EQ(echo->end, net::error::eof);
  EXPECT_EQ(echo->transport.client_name(), "");
  EXPECT_GT(echo->transport.sent(), text.size());
}

TEST_F(TransportTest, DataThatComesWithTheHandshakesEndIsRead) {
  const auto echo = Run([](TestClient& client) {
    SSL_CTX_set_max_proto_version(client.context(), TLS1_2_VERSION);
    ASSERT_EQ(client.Handshake(), "");
    EXPECT_STREQ(SSL_get_version(client.ssl()), "TLSv1.2");
    client.Send("hello");
    EXPECT_EQ(client.Read(5), "hello");
  });
  EXPECT_EQ(echo->received, "hello");
}

TEST_F(TransportTest, WithoutTlsItIsASocket) {
  const auto echo = Run(
      [](TestClient& client) {
        client.SendRaw("hello");
        client.End();
      },
      false);
  EXPECT_EQ(echo->received, "hello");
  EXPECT_EQ(echo->end, net::error::eof);
  EXPECT_EQ(echo->transport.sent(), 5);
}

TEST_F(TransportTest, ChoosesTheProtocolOrRefuses) {
  Run([](TestClient& client) {
    client.Offer("\x08http/1.1\x02h2");
    ASSERT_EQ(client.Handshake(), "");
    EXPECT_EQ(client.Chosen(), "h2");
  });
  const auto echo = Run([](TestClient& client) {
    client.Offer("\x08http/1.1");
    EXPECT_THAT(client.Handshake(), HasSubstr("no application protocol"));
  });
  EXPECT_EQ(echo->transport.failure(), TransportFailure::kHandshake);
}

TEST_F(TransportTest, TakesNoOldVersionAndNoCipherWithoutForwardSecrecy) {
  const auto old = Run([](TestClient& client) {
    SSL_CTX_set_security_level(client.context(), 0);
    SSL_CTX_set_max_proto_version(client.context(), TLS1_1_VERSION);
    EXPECT_NE(client.Handshake(), "");
  });
  EXPECT_EQ(old->transport.failure(), TransportFailure::kHandshake);
  EXPECT_EQ(old->transport.failure_text(), "unsupported protocol");
  const auto rsa = Run([](TestClient& client) {
    SSL_CTX_set_max_proto_version(client.context(), TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(client.context(), "AES128-GCM-SHA256:AES128-SHA");
    EXPECT_NE(client.Handshake(), "");
  });
  EXPECT_EQ(rsa->transport.failure_text(), "no shared cipher");
}

TEST_F(TransportTest, RefusesAClientWithoutACertificate) {
  Begin(AskForCertificates(ClientCertificates::kRequired));
  const auto echo = Run([](TestClient& client) {
    client.Handshake();  // of TLS 1.3 the client is done before the server has seen it
    EXPECT_THAT(client.Read(1), HasSubstr("certificate required"));
  });
  EXPECT_EQ(echo->transport.failure(), TransportFailure::kClientCertificate);
  EXPECT_EQ(echo->received, "");
  const auto foreign = Run([this](TestClient& client) {
    client.Show(server_);
    client.Handshake();
    EXPECT_THAT(client.Read(1), HasSubstr("unknown ca"));
  });
  EXPECT_EQ(foreign->transport.failure(), TransportFailure::kClientCertificate);
}

TEST_F(TransportTest, NamesAClientByItsCertificate) {
  for (const auto clients : {ClientCertificates::kRequired, ClientCertificates::kOptional}) {
    Begin(AskForCertificates(clients));
    for (const auto& [options, name] :
         {std::pair(TestCertificateOptions{.name = "client-7\n", .issuer = &authority_},
                    "CN=client-7\\0A"),
          std::pair(
              TestCertificateOptions{
                  .name = "", .alternative_name = "URI:spiffe://a/b", .issuer = &authority_},
              "URI:spiffe://a/b")}) {
      const auto echo = Run([&options = options](TestClient& client) {
        client.Show(MakeTestCertificate(options));
        ASSERT_EQ(client.Handshake(), "");
        client.Send("x");
        EXPECT_EQ(client.Read(1), "x");
      });
      EXPECT_EQ(echo->transport.client_name(), name);
    }
  }
  const auto echo = Run([](TestClient& client) {  // kOptional
    ASSERT_EQ(client.Handshake(), "");
    client.Send("x");
    EXPECT_EQ(client.Read(1), "x");
  });
  EXPECT_EQ(echo->transport.client_name(), "");
}

TEST_F(TransportTest, SaysWhatCameInsteadOfTls) {
  for (const std::string text : {"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0", "x"}) {
    const auto echo = Run([&](TestClient& client) {
      client.SendRaw(text);
      client.End();
    });
    EXPECT_EQ(echo->transport.failure(), TransportFailure::kPlaintext) << text;
    EXPECT_EQ(echo->received, "");
  }
  const auto silent = Run([](TestClient& client) { client.End(); });
  EXPECT_EQ(silent->transport.failure(), TransportFailure::kHandshake);
  const auto garbage = Run([](TestClient& client) {
    client.SendRaw("\x16\x03\x01" + std::string(100, '\xff'));
    client.End();
  });
  EXPECT_EQ(garbage->transport.failure(), TransportFailure::kHandshake);
}

// The header of a record, and a part of it.
const std::string kPartOfHello = "\x16\x03\x01\x20" + std::string(3000, '\0');

// Holds the first messages of as many other clients as there may be.
class OtherClients {
 public:
  explicit OtherClients(HelloBudget& budget) {
    const std::vector<uint8_t> part(16 << 10);
    for (int i = 0; i < 2000; ++i) {
      EXPECT_TRUE(hellos_.emplace_back(std::make_unique<HelloBudget::Hello>(budget))->Keep(part));
    }
    EXPECT_LE(budget.used(), 16u << 20);
  }

 private:
  std::vector<std::unique_ptr<HelloBudget::Hello>> hellos_;
};

TEST_F(TransportTest, APartOfAHelloGivesWayToLaterOnes) {
  bool gave_way = false;
  const auto watch = [&](Echo& echo) {
    const auto timer = std::make_shared<net::steady_timer>(echo.transport.get_executor());
    auto look = std::make_shared<std::function<void()>>();
    // The timer keeps it, and it the timer.
    *look = [&gave_way, timer, self = std::weak_ptr(look), one = echo.shared_from_this()] {
      if (one->end.failed()) return;
      if (one->transport.gives_way(Clock::Real().Now())) {
        gave_way = true;
        error_code ignored;
        return one->transport.close(ignored);
      }
      timer->expires_after(std::chrono::milliseconds(5));
      timer->async_wait([look = self.lock()](const error_code&) { (*look)(); });
    };
    (*look)();
  };
  const auto held = [this] { return tls_->hellos().used(); };
  const auto closed = Run(
      [&](TestClient& client) {
        client.SendRaw(kPartOfHello);
        while (held() == 0) std::this_thread::yield();
        const OtherClients others(tls_->hellos());
        EXPECT_EQ(client.ReadRaw(), "");
      },
      true, watch);
  EXPECT_TRUE(gave_way);
  EXPECT_EQ(held(), 0u);
  // One that goes on is closed then.
  const auto failed = Run([&](TestClient& client) {
    client.SendRaw(kPartOfHello);
    while (held() == 0) std::this_thread::yield();
    const OtherClients others(tls_->hellos());
    client.SendRaw("more");
    EXPECT_EQ(client.ReadRaw(), "");
  });
  EXPECT_EQ(failed->transport.failure(), TransportFailure::kHandshake);
  EXPECT_THAT(std::string(failed->transport.failure_text()), HasSubstr("too many clients"));
}

TEST_F(TransportTest, AHelloInTwoPartsIsServedWhileOthersHoldAllMemory) {
  const OtherClients others(tls_->hellos());
  const auto echo = Run([](TestClient& client) {
    ASSERT_EQ(client.HandshakeInParts(100), "");
    client.Send("hello");
    EXPECT_EQ(client.Read(5), "hello");
  });
  EXPECT_EQ(echo->received, "hello");
}

TEST_F(TransportTest, AClientThatRenegotiatesOrOnlyUpdatesKeysIsRefused) {
  const auto renegotiated = Run([](TestClient& client) {
    SSL_CTX_set_max_proto_version(client.context(), TLS1_2_VERSION);
    ASSERT_EQ(client.Handshake(), "");
    SSL_renegotiate(client.ssl());
    SSL_do_handshake(client.ssl());
    EXPECT_THAT(client.Read(1), HasSubstr("no renegotiation"));
  });
  EXPECT_EQ(renegotiated->received, "");
  const auto updated = Run([](TestClient& client) {
    ASSERT_EQ(client.Handshake(), "");
    int updates = 0;
    do {
      SSL_key_update(client.ssl(), SSL_KEY_UPDATE_NOT_REQUESTED);
    } while (SSL_do_handshake(client.ssl()) == 1 && ++updates < 1'000'000);
    EXPECT_LT(updates, 1'000'000);
  });
  EXPECT_EQ(updated->end, net::error::connection_aborted);
  const auto seldom = Run([](TestClient& client) {
    ASSERT_EQ(client.Handshake(), "");
    for (int i = 0; i < 100; ++i) {
      SSL_key_update(client.ssl(), SSL_KEY_UPDATE_REQUESTED);
      client.Send("x");
      ASSERT_EQ(client.Read(1), "x");
    }
  });
  EXPECT_EQ(seldom->received.size(), 100u);
}

TEST_F(TransportTest, AnOpenConnectionKeepsItsCertificate) {
  const TestCertificate next = MakeTestCertificate({.name = "next"});
  Run([&](TestClient& client) {
    ASSERT_EQ(client.Handshake(), "");
    WriteTestFile(testing::TempDir() + "transport.pem", next.certificate_pem() + next.key_pem());
    tls_->Reload();
    client.Send("x");
    EXPECT_EQ(client.Read(1), "x");
    EXPECT_EQ(client.NameOfServer(), "CN=server");
  });
  Run([](TestClient& client) {
    ASSERT_EQ(client.Handshake(), "");
    EXPECT_EQ(client.NameOfServer(), "CN=next");
  });
}

// For 1.2.3.4:4660.
const std::string kProxyHeader("\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0C\1\2\3\4\x7F\0\0\1\x12\x34\0\x50",
                               28);

TEST_F(TransportTest, AProxyNamesTheClient) {
  proxies_ = {*ParseAddressRange("127.0.0.0/8")};
  for (const bool with_tls : {false, true}) {
    const auto echo = Run(
        [&](TestClient& client) {
          for (const char byte : kProxyHeader) client.SendRaw({&byte, 1});
          if (!with_tls) return client.SendRaw("hello"), client.End();
          ASSERT_EQ(client.Handshake(), "");
          client.Send("hello");
          EXPECT_EQ(client.Read(5), "hello");
        },
        with_tls);
    EXPECT_EQ(echo->received, "hello");
    EXPECT_TRUE(echo->transport.is_proxied());
    EXPECT_EQ(echo->transport.peer().address().to_string(), "1.2.3.4");
    EXPECT_EQ(echo->transport.peer().port(), 4660);
    const auto missing = Run(
        [](TestClient& client) {
          client.SendRaw("GET / HTTP/1.1\r\n\r\n");
          client.End();
        },
        with_tls);
    EXPECT_EQ(missing->transport.failure(), TransportFailure::kProxyHeader);
    EXPECT_EQ(missing->received, "");
    const auto gone =
        Run([](TestClient& client) { client.SendRaw("\r\n\r\n"), client.End(); }, with_tls);
    EXPECT_EQ(gone->transport.failure(), TransportFailure::kNone);
    EXPECT_EQ(gone->end, net::error::eof);
  }
}

TEST_F(TransportTest, AClientThatIsNoProxyNamesNobody) {
  proxies_ = {*ParseAddressRange("10.0.0.0/8")};
  const auto echo = Run(
      [](TestClient& client) {
        client.SendRaw(kProxyHeader);
        client.End();
      },
      false);
  EXPECT_EQ(echo->received, kProxyHeader);
  EXPECT_FALSE(echo->transport.is_proxied());
}

TEST_F(TransportTest, MayBeClosedAtAnyTime) {
  for (int i = 0; i < 100; ++i) {
    Run([](TestClient& client) { client.Handshake(); }, true,
        [&](Echo& echo) {
          const auto timer = std::make_shared<net::steady_timer>(echo.transport.get_executor(),
                                                                 std::chrono::microseconds(20 * i));
          timer->async_wait([timer, one = echo.shared_from_this()](const error_code&) {
            error_code ignored;
            one->transport.close(ignored);
          });
        });
  }
}

}  // namespace
}  // namespace millrace
