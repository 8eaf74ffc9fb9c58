#include "server/http/all_protocols.h"

#include "server/http/admin_status.h"
#include "server/http/kserve.h"
#include "server/http/messages.h"
#include "server/http/openai_protocol.h"
#include "server/http/openapi.h"
#include "server/http/responses.h"
#include "server/http/server_protocol.h"

namespace millrace {

std::vector<HttpProtocol> AllProtocols() {
  return {OpenAiProtocol(), MessagesProtocol(), ResponsesProtocol(), KserveProtocol(),
          ServerProtocol(), OpenApiProtocol(),  AdminProtocol()};
}

}  // namespace millrace
