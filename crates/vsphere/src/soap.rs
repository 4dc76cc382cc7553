use crate::error::Fault;
use crate::xml::{self, Element};

/// A managed object: its type and id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Moref {
    /// `VirtualMachine`.
    pub kind: String,
    /// `vm-42`.
    pub id: String,
}

impl Moref {
    pub fn new(kind: &str, id: &str) -> Self {
        Moref { kind: kind.to_string(), id: id.to_string() }
    }

    /// Reads `<obj type="VirtualMachine">vm-42</obj>`.
    pub fn of(element: &Element) -> Self {
        Moref::new(&element.reference, &element.text)
    }

    /// Writes `<name type="VirtualMachine">vm-42</name>`.
    pub fn tag(&self, name: &str) -> String {
        format!("<{name} type=\"{}\">{}</{name}>", xml::escape(&self.kind), xml::escape(&self.id))
    }
}

/// Writes `<name>text</name>`.
pub fn tag(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>", xml::escape(text))
}

/// The envelope around a call of `method` on `this`; `arguments` is XML.
pub fn envelope(method: &str, this: &Moref, arguments: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <soapenv:Envelope xmlns:soapenv=\"http://schemas.xmlsoap.org/soap/envelope/\" \
         xmlns:xsd=\"http://www.w3.org/2001/XMLSchema\" xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\">\
         <soapenv:Body><{method} xmlns=\"urn:vim25\">{}{arguments}</{method}></soapenv:Body></soapenv:Envelope>",
        this.tag("_this"),
    )
}

/// What an answer holds.
#[derive(Debug)]
pub enum Answer {
    /// The response element; its children are named `returnval`.
    Returned(Element),
    /// The call failed.
    Failed(Fault),
}

/// Takes an answer out of its envelope.
pub fn open(text: &str) -> Result<Answer, String> {
    let mut envelope = xml::parse(text)?;
    if envelope.name != "Envelope" {
        return Err(format!("'{}' instead of a SOAP envelope", envelope.name.escape_debug()));
    }
    let body = envelope.children.iter_mut().find(|child| child.name == "Body");
    let content = body.and_then(|body| (!body.children.is_empty()).then(|| body.children.swap_remove(0)));
    match content {
        Some(content) if content.name == "Fault" => Ok(Answer::Failed(soap_fault(&content))),
        Some(content) => Ok(Answer::Returned(content)),
        None => Err("empty SOAP body".to_string()),
    }
}

fn soap_fault(fault: &Element) -> Fault {
    let message = fault.string_at("faultstring");
    match fault.child("detail").and_then(|detail| detail.children.first()) {
        Some(detail) => typed_fault(detail, message),
        None => Fault { name: local_code(fault), message, ..Fault::default() },
    }
}

fn local_code(fault: &Element) -> String {
    fault.text_at("faultcode").and_then(|code| code.rsplit(':').next()).unwrap_or("Fault").to_string()
}

/// The fault of a task: `<error><fault xsi:type="...">...</fault><localizedMessage>...</localizedMessage></error>`.
pub fn task_fault(error: &Element) -> Fault {
    let message = error.string_at("localizedMessage");
    match error.child("fault") {
        Some(fault) => typed_fault(fault, message),
        None => Fault { name: "Fault".to_string(), message, ..Fault::default() },
    }
}

fn typed_fault(detail: &Element, message: String) -> Fault {
    let name = match detail.kind.as_str() {
        "" => detail.name.strip_suffix("Fault").filter(|name| !name.is_empty()).unwrap_or(&detail.name),
        kind => kind,
    };
    // The general message often says nothing; the reason is in the messages below it.
    let more = detail.all("faultMessage").filter_map(|below| below.text_at("message"));
    let reason = detail.text_at("reason").into_iter().chain(more).filter(|text| !message.contains(text));
    let parts: Vec<&str> =
        (!message.is_empty()).then_some(message.as_str()).into_iter().chain(reason).collect();
    Fault {
        name: name.to_string(),
        message: parts.join("; "),
        privilege: detail.text_at("privilegeId").map(str::to_string),
        property: detail.text_at("invalidProperty").map(str::to_string),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> Result<Answer, String> {
        open(&format!(
            "<S:Envelope xmlns:S=\"s\" xmlns:q=\"http://www.w3.org/2001/XMLSchema-instance\"><S:Body>{body}</S:Body></S:Envelope>"
        ))
    }

    #[test]
    fn a_fault_has_the_name_of_its_type() {
        let text = "<S:Fault><faultcode>ServerFaultCode</faultcode><faultstring>Permission denied.</faultstring><detail>\
                    <NoPermissionFault q:type=\"NoPermission\"><object type=\"Folder\">group-d1</object>\
                    <privilegeId>System.Read</privilegeId></NoPermissionFault></detail></S:Fault>";
        let Ok(Answer::Failed(fault)) = answer(text) else { panic!("no fault") };
        assert_eq!((fault.name.as_str(), fault.privilege.as_deref()), ("NoPermission", Some("System.Read")));
    }

    #[test]
    fn without_a_type_the_element_names_the_fault() {
        let text = "<S:Fault><faultstring>x</faultstring><detail><InvalidLoginFault/></detail></S:Fault>";
        let Ok(Answer::Failed(fault)) = answer(text) else { panic!("no fault") };
        assert_eq!(fault.name, "InvalidLogin");
        let Ok(Answer::Failed(fault)) = answer("<S:Fault><faultcode>S:Client</faultcode></S:Fault>") else {
            panic!()
        };
        assert_eq!(fault.name, "Client");
    }

    #[test]
    fn a_task_error_carries_the_messages_below() {
        let text = "<e xmlns:q=\"http://www.w3.org/2001/XMLSchema-instance\"><fault q:type=\"ApplicationQuiesceFault\">\
                    <faultMessage><key>k</key><message>writer failed</message></faultMessage></fault>\
                    <localizedMessage>cannot quiesce</localizedMessage></e>";
        let fault = task_fault(&xml::parse(text).unwrap());
        assert_eq!(fault.message, "cannot quiesce; writer failed");
    }

    #[test]
    fn html_and_empty_bodies_are_no_answers() {
        assert!(open("<html><body/></html>").is_err());
        assert!(answer("").is_err());
    }
}
