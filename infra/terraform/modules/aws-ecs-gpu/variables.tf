variable "name" {
  type        = string
  description = "Name of the cluster, the service and the load balancer. The region is the provider's."
  default     = "zse"

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,26}[a-z0-9])?$", var.name)) && !startswith(var.name, "internal-")
    error_message = "The name has lower-case letters, digits and dashes, begins with a letter, 28 characters at most."
  }
}

variable "vpc_id" {
  type        = string
  description = "VPC that exists."

  validation {
    condition     = startswith(var.vpc_id, "vpc-")
    error_message = "A VPC's id begins with vpc-."
  }
}

variable "subnet_ids" {
  type        = list(string)
  description = "Subnets of the instances, with a way to ECR, S3 and ECS (NAT or endpoints)."

  validation {
    condition     = length(var.subnet_ids) >= 1 && alltrue([for id in var.subnet_ids : startswith(id, "subnet-")])
    error_message = "Name at least one subnet by its id."
  }
}

variable "load_balancer_subnet_ids" {
  type        = list(string)
  description = "Subnets of the load balancer, in two zones or more; public ones when it is public. Empty: subnet_ids."
  default     = []

  validation {
    condition     = alltrue([for id in var.load_balancer_subnet_ids : startswith(id, "subnet-")])
    error_message = "A subnet's id begins with subnet-."
  }
}

variable "image" {
  type        = string
  description = "Image that zse build-image wrote. Name it by digest where you can."

  validation {
    condition     = length(var.image) > 0 && !can(regex("\\s|://", var.image))
    error_message = "The image is a reference such as ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG, without a scheme."
  }
}

variable "model_url" {
  type        = string
  description = "Address that the server streams the model from, such as s3://BUCKET/KEY. Empty: the model is in the image."
  default     = ""

  validation {
    condition     = var.model_url == "" || can(regex("^(s3|hf|https)://[^\\s]+$", var.model_url))
    error_message = "A model address begins with s3://, hf:// or https://."
  }
}

variable "gpu_type" {
  type        = string
  description = "Instance type with an A10G (g5), L4 (g6), L40S (g6e), A100 (p4d) or H100 (p5)."
  default     = "g6.xlarge"

  validation {
    condition     = can(regex("^(g5|g6|gr6|g6e|p4d|p4de|p5|p5e|p5en|p6-b200)\\.[0-9]*x?large$", var.gpu_type))
    error_message = "Use a g5, g6, g6e, p4 or p5 instance: older GPUs lack compute capability 8.0."
  }
}

variable "memory_mib" {
  type        = number
  description = "Memory of the task. The weights do not go through it whole."
  default     = 8192

  validation {
    condition     = var.memory_mib >= 1024
    error_message = "memory_mib is 1024 or more."
  }
}

variable "disk_gb" {
  type        = number
  description = "Disk of an instance; images are unpacked there."
  default     = 60

  validation {
    condition     = var.disk_gb >= 40
    error_message = "The machine image alone needs 40 GB."
  }
}

variable "min_instances" {
  type        = number
  description = "Tasks, and so instances, that never sleep. 0 scales to zero."
  default     = 0

  validation {
    condition     = var.min_instances >= 0 && floor(var.min_instances) == var.min_instances
    error_message = "min_instances is a whole number, 0 or more."
  }
}

variable "max_instances" {
  type        = number
  description = "Tasks, and so instances, at most."
  default     = 1

  validation {
    condition     = var.max_instances >= 1 && floor(var.max_instances) == var.max_instances
    error_message = "max_instances is a whole number, 1 or more."
  }
}

variable "requests_per_minute" {
  type        = number
  description = "Requests that a task answers in a minute before another is started (with max_instances above 1)."
  default     = 60

  validation {
    condition     = var.requests_per_minute > 0
    error_message = "requests_per_minute is above 0."
  }
}

variable "idle_seconds" {
  type        = number
  description = "Without requests, until the last task is put to sleep; in whole minutes."
  default     = 600

  validation {
    condition     = var.idle_seconds >= 60 && var.idle_seconds <= 86400 && var.idle_seconds % 60 == 0
    error_message = "idle_seconds is a multiple of 60, from 60 to 86400."
  }
}

variable "startup_seconds" {
  type        = number
  description = "Until a task that is not ready counts as broken."
  default     = 300

  validation {
    condition     = var.startup_seconds >= 1 && var.startup_seconds <= 7200
    error_message = "startup_seconds is 1 to 7200."
  }
}

variable "drain_seconds" {
  type        = number
  description = "For work in flight, from SIGTERM until the task is killed."
  default     = 30

  validation {
    condition     = var.drain_seconds >= 6 && var.drain_seconds <= 120
    error_message = "ECS gives 120 seconds at most; the server needs 6."
  }
}

variable "port" {
  type        = number
  description = "Port that the server binds."
  default     = 8000

  validation {
    condition     = var.port >= 1 && var.port <= 65535
    error_message = "A port is a number from 1 to 65535."
  }
}

variable "env" {
  type        = map(string)
  description = "Variables of the server. They are in the state in plain text: no secrets here."
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.env) : can(regex("^[A-Za-z_][A-Za-z0-9_]*$", name)) && name != "PORT"])
    error_message = "A variable's name has letters, digits and underscores; PORT is set by var.port."
  }
}

variable "secrets" {
  type        = map(string)
  description = "Variable of the server -> ARN in Secrets Manager or Parameter Store. The value never enters the state."
  default     = {}

  validation {
    condition     = alltrue([for arn in values(var.secrets) : can(regex("^arn:[^:]+:(secretsmanager|ssm):", arn))])
    error_message = "A secret is written as arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME."
  }
}

variable "public" {
  type        = bool
  description = "Let the internet reach the load balancer. Otherwise only the VPC does."
  default     = false
}

variable "certificate_arn" {
  type        = string
  description = "Certificate of the load balancer; empty serves plain HTTP, inside the VPC only."
  default     = ""

  validation {
    condition     = var.certificate_arn == "" || can(regex("^arn:[^:]+:acm:", var.certificate_arn))
    error_message = "A certificate is written as arn:aws:acm:REGION:ACCOUNT:certificate/ID."
  }
}

variable "allowed_cidrs" {
  type        = list(string)
  description = "Address ranges that reach the load balancer, such as the VPC's."

  validation {
    condition     = length(var.allowed_cidrs) >= 1 && alltrue([for cidr in var.allowed_cidrs : can(cidrhost(cidr, 0))])
    error_message = "Name at least one range, such as 10.0.0.0/16."
  }
}

variable "log_days" {
  type        = number
  description = "Days that logs are kept."
  default     = 30

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 180, 365], var.log_days)
    error_message = "CloudWatch keeps logs 1, 3, 5, 7, 14, 30, 60, 90, 180 or 365 days."
  }
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything."
  default     = {}
}
