package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"net"
)

// issueFor is issue for a server at other addresses than loopback.
func (p *pki) issueFor(name string, organizations []string, addresses ...net.IP) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := certificate(name)
	template.Subject.Organization = organizations
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
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
