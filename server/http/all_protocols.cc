#include "server/http/all_protocols.h"

#include "server/http/admin/admin_status.h"
#include "server/http/admin/server_protocol.h"
#include "server/http/kserve/kserve.h"
#include "server/http/messages/messages.h"
#include "server/http/openai/openai_protocol.h"
#include "server/http/openapi/openapi.h"
#include "server/http/responses/responses.h"

namespace millrace {

std::vector<HttpProtocol> AllProtocols() {
  return {OpenAiProtocol(), MessagesProtocol(), ResponsesProtocol(), KserveProtocol(),
          ServerProtocol(), OpenApiProtocol(),  AdminProtocol()};
}

}  // namespace millrace
