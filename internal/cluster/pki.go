package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// pki is a certificate authority for one test.
type pki struct {
	cert    *x509.Certificate
	certPEM []byte
	key     crypto.Signer
}

func newPKI() (*pki, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate("test-ca")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &pki{cert: cert, certPEM: encode("CERTIFICATE", der), key: key}, nil
}

// issue returns a certificate and its key as PEM, for serving on loopback and
// for a client: Kubernetes takes the name as the user and the organizations as
// its groups.
func (p *pki) issue(name string, organizations []string) (cert, key []byte, err error) {
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	return p.sign(name, organizations, usage, []net.IP{net.IPv4(127, 0, 0, 1)})
}

// issueFor is issue for a server at other addresses than loopback.
func (p *pki) issueFor(name string, organizations []string, addresses ...net.IP) (cert, key []byte, err error) {
	return p.sign(name, organizations, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, addresses)
}

func (p *pki) sign(name string, organizations []string, usage []x509.ExtKeyUsage, addresses []net.IP) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := certificate(name)
	template.Subject.Organization = organizations
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = usage
	template.IPAddresses = addresses
	template.DNSNames = []string{"localhost", "kubernetes.default.svc"}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, private.Public(), p.key)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8), nil
}

// serviceAccountKey returns the key pair that signs ServiceAccount tokens.
func serviceAccountKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	pkix, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, err
	}
	return encode("PRIVATE KEY", pkcs8), encode("PUBLIC KEY", pkix), nil
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), // a container's clock may lag
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
