/* The vSphere API, as far as NFC needs it: login, NfcService, tickets. Texts are looked for where they are known to
 * be; nothing else of the answers is understood. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote.h"

enum { PORT = 443, NFC_PORT = 902, ANSWER_MAX = 1 << 20, REQUEST_MAX = 16 << 10 };

struct api {
    char server[TEXT_MAX], thumbprint[TEXT_MAX], cookie[TEXT_MAX], manager[64], nfc_service[64];
    unsigned port, nfc_port;
    bool logged_in; /* by us */
};

/* The text of the first element of that name. */
static bool element(const char *xml, const char *name, char *to, size_t room) {
    char open[80];
    int length = snprintf(open, sizeof open, "<%s", name);
    *to = 0;
    for (const char *at = xml; (at = strstr(at, open)); at += length) {
        if (at[length] != '>' && !isspace((unsigned char)at[length])) continue;
        const char *text = strchr(at, '>');
        if (!text || text[-1] == '/') return false;
        size_t bytes = strcspn(text + 1, "<");
        if (bytes >= room) return false;
        memcpy(to, text + 1, bytes);
        to[bytes] = 0;
        return true;
    }
    return false;
}

static void escape(const char *text, char *to, size_t room) {
    size_t at = 0;
    for (; *text && at + 8 < room; text++) at += snprintf(to + at, room - at, strchr("<>&\"'", *text) ? "&#%d;" : "%c", *text);
    to[at] = 0;
}

/* HTTP/1.0, so that the answer comes in one piece and ends with the connection. */
static VixError post(struct api *api, const char *call, char **answer) {
    static const char envelope[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>"
        "<Envelope xmlns=\"http://schemas.xmlsoap.org/soap/envelope/\" "
        "xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\"><Body>%s</Body></Envelope>";
    char body[REQUEST_MAX], request[2 * REQUEST_MAX], cookie[TEXT_MAX + 64] = "";
    struct line line;
    *answer = NULL;
    if (!line_connect(&line, api->server, api->port)) {
        warn("Host %s port %u cannot be reached", api->server, api->port);
        return VIX_E_SERVER_NOT_FOUND;
    }
    enum tls_result tls = line_tls(&line, api->server, api->thumbprint, false);
    if (tls != TLS_GOOD) {
        warn(tls == TLS_FAILED ? "SSL: the handshake with %s fails"
                               : "SSL: Thumbprint mismatch: the certificate of %s is not the one given", api->server);
        line_close(&line);
        return VIX_E_SERVER_REFUSED;
    }
    if (*api->cookie) snprintf(cookie, sizeof cookie, "Cookie: vmware_soap_session=\"%s\"\r\n", api->cookie);
    int length = snprintf(body, sizeof body, envelope, call);
    length = snprintf(request, sizeof request,
                      "POST /sdk HTTP/1.0\r\nHost: %s\r\nContent-Type: text/xml; charset=utf-8\r\n"
                      "SOAPAction: \"urn:vim25\"\r\n%sContent-Length: %d\r\n\r\n%s", api->server, cookie, length, body);
    char *text = length < (int)sizeof request ? malloc(ANSWER_MAX + 1) : NULL;
    size_t filled = 0;
    if (text && line_send_all(&line, request, length))
        for (ssize_t got; filled < ANSWER_MAX; filled += got)
            if ((got = line_receive(&line, text + filled, ANSWER_MAX - filled)) <= 0) break;
    line_close(&line);
    if (text) text[filled] = 0;
    if (!text || !strstr(text, "Envelope>")) {
        warn("%s gives no answer to a call", api->server);
        free(text);
        return VIX_E_SERVER_NOT_FOUND;
    }
    *answer = text;
    return VIX_OK;
}

static VixError failure_of(const char *answer) {
    char why[TEXT_MAX];
    if (!element(answer, "faultstring", why, sizeof why)) return VIX_OK;
    warn("VixDiskLibVim: the API answers: %s", why);
    static const char *denied[] = {"NoPermission", "InvalidLogin", "NotAuthenticated"};
    for (size_t i = 0; i < sizeof denied / sizeof *denied; i++)
        if (strstr(answer, denied[i])) return VIX_E_NO_PERMISSION;
    return strstr(answer, "ManagedObjectNotFound") ? VIX_E_FILE_NOT_FOUND : VIX_E_INVALID_ARG;
}

static VixError call(struct api *api, const char *text, char **answer) {
    VixError error = post(api, text, answer);
    if (error == VIX_OK && (error = failure_of(*answer)) != VIX_OK) {
        free(*answer);
        *answer = NULL;
    }
    return error;
}

/* As [`call`], where one element of the answer is all that is wanted. */
static VixError call_for(struct api *api, const char *text, const char *name, char *to, size_t room) {
    char *answer;
    VixError error = call(api, text, &answer);
    if (error != VIX_OK) return error;
    bool found = element(answer, name, to, room);
    free(answer);
    if (!found) warn("VixDiskLibVim: the API's answer has no %s", name);
    return found ? VIX_OK : VIX_E_NOT_SUPPORTED;
}

static VixError login(struct api *api, const char *user, const char *password) {
    char text[REQUEST_MAX / 2], name[TEXT_MAX], secret[TEXT_MAX], *answer;
    escape(user ? user : "", name, sizeof name);
    escape(password ? password : "", secret, sizeof secret);
    snprintf(text, sizeof text,
             "<Login xmlns=\"urn:vim25\"><_this type=\"SessionManager\">%s</_this><userName>%s</userName>"
             "<password>%s</password></Login>", api->manager, name, secret);
    VixError error = call(api, text, &answer);
    if (error != VIX_OK) return error;
    static const char key[] = "vmware_soap_session=";
    const char *cookie = strstr(answer, key);
    if (cookie) {
        cookie += strlen(key);
        if (*cookie == '"') cookie++;
        snprintf(api->cookie, sizeof api->cookie, "%.*s", (int)strcspn(cookie, "\";\r\n"), cookie);
    }
    free(answer);
    api->logged_in = *api->cookie != 0;
    return api->logged_in ? VIX_OK : VIX_E_NO_PERMISSION;
}

VixError api_open(const struct connect_params *params, struct api **out) {
    struct api *api = calloc(1, sizeof *api);
    if (!api) return VIX_E_OUT_OF_MEMORY;
    snprintf(api->server, sizeof api->server, "%s", params->server ? params->server : "");
    snprintf(api->thumbprint, sizeof api->thumbprint, "%s", params->thumbprint ? params->thumbprint : "");
    api->port = params->port ? params->port : PORT;
    api->nfc_port = params->nfc_port;
    VixError error = call_for(api, "<RetrieveServiceContent xmlns=\"urn:vim25\"><_this type=\"ServiceInstance\">"
                              "ServiceInstance</_this></RetrieveServiceContent>", "sessionManager", api->manager,
                              sizeof api->manager);
    if (error == VIX_OK && params->cred_type == CRED_SESSION)
        snprintf(api->cookie, sizeof api->cookie, "%s", params->creds.session.cookie ? params->creds.session.cookie : "");
    else if (error == VIX_OK)
        error = login(api, params->creds.uid.user, params->creds.uid.password);
    if (error == VIX_OK)
        error = call_for(api, "<RetrieveInternalContent xmlns=\"urn:vim25\"><_this type=\"ServiceInstance\">"
                         "ServiceInstance</_this></RetrieveInternalContent>", "nfcService", api->nfc_service,
                         sizeof api->nfc_service);
    if (error != VIX_OK) {
        api_close(api);
        return error;
    }
    *out = api;
    return VIX_OK;
}

void api_close(struct api *api) {
    if (!api) return;
    if (api->logged_in) {
        char text[TEXT_MAX], *answer = NULL;
        snprintf(text, sizeof text, "<Logout xmlns=\"urn:vim25\"><_this type=\"SessionManager\">%s</_this></Logout>",
                 api->manager);
        call(api, text, &answer);
        free(answer);
    }
    free(api);
}

/* Good for one connection, to any disk of the VM. */
VixError api_ticket(struct api *api, const char *vm, struct ticket *ticket) {
    char text[2 * TEXT_MAX], id[TEXT_MAX], port[16], *answer;
    escape(vm, id, sizeof id);
    snprintf(text, sizeof text,
             "<NfcGetVmFiles xmlns=\"urn:vim25\"><_this type=\"NfcService\">%s</_this>"
             "<vm type=\"VirtualMachine\">%s</vm></NfcGetVmFiles>", api->nfc_service, id);
    VixError error = call(api, text, &answer);
    if (error != VIX_OK) return error;
    /* A lone ESXi host names none: it is the one that was asked. */
    if (!element(answer, "host", ticket->host, sizeof ticket->host))
        snprintf(ticket->host, sizeof ticket->host, "%.255s", api->server);
    ticket->port = element(answer, "port", port, sizeof port) ? strtoul(port, NULL, 10) : NFC_PORT;
    if (api->nfc_port) ticket->port = api->nfc_port;
    if (!element(answer, "sslThumbprint", ticket->thumbprint, sizeof ticket->thumbprint))
        snprintf(ticket->thumbprint, sizeof ticket->thumbprint, "%.127s", api->thumbprint);
    bool whole = element(answer, "service", ticket->service, sizeof ticket->service) &&
                 element(answer, "sessionId", ticket->session, sizeof ticket->session);
    free(answer);
    if (!whole) warn("VixDiskLibVim: the API gives no ticket");
    return whole ? VIX_OK : VIX_E_NOT_SUPPORTED;
}
