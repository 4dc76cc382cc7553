package nfc

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"
)

// certificate is a host's, which is not that of port 443.
type certificate struct {
	pem    []byte
	sha1   string // AA:BB:...
	sha256 string // plain hex
	config *tls.Config
}

// Real hosts have RSA keys of this size.
func newKey() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) }

func newCertificate(newKey func() (*rsa.PrivateKey, error), name string, addresses []net.IP) (*certificate, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: []string{"drover lab host"}},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: addresses,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	one, two := sha1.Sum(der), sha256.Sum256(der)
	return &certificate{
		pem:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		sha1:   strings.ReplaceAll(strings.ToUpper(fmt.Sprintf("% x", one)), " ", ":"),
		sha256: hex.EncodeToString(two[:]),
		config: hostTLS(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}),
	}, nil
}

// hostTLS is as ESXi 7 and 8 were seen: TLS 1.2, ECDHE-RSA-AES-GCM, nothing resumed.
func hostTLS(pair tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12,
		SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
		CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384},
	}
}
