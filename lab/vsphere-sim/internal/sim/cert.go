package sim

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"
)

// certificate is a self-signed server certificate in all the forms that callers need.
type certificate struct {
	pair   tls.Certificate
	pem    []byte
	sha1   string
	sha256 string
}

// newCertificate makes one for localhost and addresses.
func newCertificate(addresses []net.IP) (*certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "vsphere-sim", Organization: []string{"drover lab"}},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		// Clients take it as its own CA, strict ones only if it says that it is one.
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"},
		IPAddresses: addresses,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	one, two := sha1.Sum(der), sha256.Sum256(der)
	return &certificate{
		pair:   tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		sha1:   colonHex(one[:]),
		sha256: colonHex(two[:]),
	}, nil
}

func colonHex(digest []byte) string {
	return strings.ReplaceAll(strings.ToUpper(fmt.Sprintf("% x", digest)), " ", ":")
}

// signedBytes gives the PEM text as the signed bytes that the API's byte arrays are in govmomi.
func (c *certificate) signedBytes() []byte { return bytes.Clone(c.pem) }

// tlsConfig serves whatever certificate is current. Records are of full size from the start,
// since throughput matters more here than the first byte.
func (s *Sim) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:                  tls.VersionTLS12,
		NextProtos:                  []string{"http/1.1"},
		DynamicRecordSizingDisabled: true,
		CipherSuites:                []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &s.cert.Load().pair, nil
		},
	}
}
