package client

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/remoting"
)

// Credentials prove who a client is (upstream: SessionCredentials; section 10.4).
type Credentials struct {
	AccessKey     string
	SecretKey     string
	SecurityToken string // of temporary credentials, else ""
}

const (
	fieldAccessKey     = "AccessKey"
	fieldSecurityToken = "SecurityToken"
	fieldSignature     = "Signature"
)

// sign returns a copy of req with the fields that credentials add. The
// signature covers all values, ordered by their names, and the body.
func (cr *Credentials) sign(req *remoting.Command) *remoting.Command {
	cmd := *req
	cmd.Ext = slices.Clone(req.Ext)
	cmd.Ext.Set(fieldAccessKey, cr.AccessKey)
	if cr.SecurityToken != "" {
		cmd.Ext.Set(fieldSecurityToken, cr.SecurityToken)
	}
	cmd.Ext.Delete(fieldSignature)
	sorted := slices.Clone(cmd.Ext)
	slices.SortFunc(sorted, func(a, b remoting.Field) int { return strings.Compare(a.Name, b.Name) })
	mac := hmac.New(sha1.New, []byte(cr.SecretKey))
	for _, f := range sorted {
		mac.Write([]byte(f.Value)) //nolint:errcheck // never fails
	}
	mac.Write(req.Body) //nolint:errcheck // never fails
	cmd.Ext.Set(fieldSignature, base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return &cmd
}
